"""The tables of BigDL models. See pages.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks.ibatch.table import IBATCH_NODES, IBATCH_PAPER, KEPT, kept
from benchmarks.tables import Data, Table, beside, seconds, with_theory
from lab.results import Row

_FILES = ("bigdl-local", "bigdl-star4", "bigdl-star8")
#: Of networks that really compute.
LENET_FILES = ("bigdl-real-star4", "bigdl-real-star8")
VGG_FILES = ("bigdl-vgg-star4", "bigdl-vgg-star8")
#: Where a communication's start-up takes longer.
DELAY_FILES = ("bigdl-delay-star8",)


def beside_bigdl(data: Data, files: Sequence[str] = _FILES) -> Iterator[tuple[str, ...]]:
    for name in files:
        for ours in data.rows(name, algorithm="ibatch"):
            for way in ("bigdl", "whole", "layerwise"):
                other = data.row(name, algorithm=way, case=ours.case, world=ours.world)
                if other:
                    gained = f"{other.seconds / ours.seconds:.2f} x: {with_theory(ours)}; {seconds(other)}"
                    yield f"{_about(ours)}: beside `{way}`", kept(ours), gained, beside(ours, other)


def overlap(data: Data) -> Iterator[tuple[str, ...]]:
    for name in _FILES:
        for row in data.rows(name):
            if parts := row.extra["overlap"]:
                told = (parts[part] for part in ("overlapped", "communication_only", "computation_only"))
                yield f"{_about(row)}: {_way(row)}", *(_share(part, row) for part in told), seconds(row)


def scaling(data: Data) -> Iterator[tuple[str, ...]]:
    rows = data.rows("bigdl-scaling")
    for row in rows:
        alone = [one.seconds for one in rows if one.world == 1 and one.case == row.case]
        if row.world > 1 and alone:
            speedup = row.world * min(alone) / row.seconds
            # The paper batches pulls alone, so its iBatch is not beside `ibatch`, which batches pushes as well.
            paper = IBATCH_PAPER[row.case][1] if row.algorithm == "bigdl" and row.case in IBATCH_PAPER else None
            told = f"{paper} x on {IBATCH_NODES}: {paper / IBATCH_NODES:.2f} of linear" if paper else "-"
            ours = f"{speedup:.2f} x: {speedup / row.world:.2f} of linear; {seconds(row)}"
            rival = data.row("bigdl-scaling", algorithm="bigdl", case=row.case, world=row.world)
            verdict = beside(row, rival) if rival and row.algorithm != "bigdl" else "-"
            yield f"{row.case}, {row.world} executors: {_way(row)}", told, ours, verdict


def _way(row: Row) -> str:
    return f"`{row.algorithm}` ({kept(row)})" if row.algorithm == "ibatch" else f"`{row.algorithm}`"


def _about(row: Row) -> str:
    delay = row.extra.get("delay")
    start = f", start-up + {delay * 1e3:g} ms" if delay else ""
    return f"{row.case}, {'local-cluster' if row.topology == 'loopback' else row.topology}{start}"


def _share(part: float, row: Row) -> str:
    return f"{part * 1e3:.3g} ms, {part / row.seconds:.0%}"


TABLES = {
    "bigdl": Table(KEPT, beside_bigdl),
    "bigdl_real": Table(KEPT, partial(beside_bigdl, files=LENET_FILES)),
    "bigdl_vgg": Table(KEPT, partial(beside_bigdl, files=VGG_FILES)),
    "bigdl_delay": Table(KEPT, partial(beside_bigdl, files=DELAY_FILES)),
    "bigdl_overlap": Table(("", "overlapped", "communication only", "computation only", "iteration"), overlap),
    "bigdl_scaling": Table(("", "paper", "ours", "beside `bigdl`"), scaling),
}
