"""Tables of BigDL models."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.charts import Chart
from benchmarks.ibatch.table import IBATCH_NODES, IBATCH_PAPER, kept
from benchmarks.tables import PEER, Data, Line, Table, bar, beside, seconds, summary, with_theory
from lab.results import Row

#: Results that are measured at one commit, by the end of their table's name.
RESULTS = {
    "": ("bigdl-local", "bigdl-star4", "bigdl-star8"),
    "_real": ("bigdl-real-star4", "bigdl-real-star8"),
    "_vgg": ("bigdl-vgg-star4", "bigdl-vgg-star8"),
    "_delay": ("bigdl-delay-star8",),
}


def rivals(data: Data, name: str) -> Iterator[Line]:
    """`ibatch` beside BigDL's optimizer and beside the other policies."""
    for ours, other in data.pairs(name, {"ibatch": ("bigdl", "whole", "layerwise")}, "case", "world"):
        gain = f"{other.seconds / ours.seconds:.2f} x: {with_theory(ours)}"
        theirs = f"`{other.algorithm}`: {seconds(other)}"
        yield f"{_about(ours)}: {_way(ours)}", theirs, gain, beside(ours, other)


def overlap(data: Data, name: str) -> Iterator[Line]:
    """Shares of an iteration in which ranks compute, wait for data, or do both."""
    for row in data.rows(name):
        if parts := row.extra["overlap"]:
            times = (parts[part] for part in ("overlapped", "communication_only", "computation_only"))
            yield f"{_about(row)}: {_way(row)}", *(_share(part, row) for part in times), seconds(row)


def scaling(data: Data) -> Iterator[Line]:
    """Speed-up over the fastest system on one executor."""
    rows = data.rows("bigdl-scaling")
    for row in rows:
        alone = [one.seconds for one in rows if one.world == 1 and one.case == row.case]
        if row.world > 1 and alone:
            speedup = row.world * min(alone) / row.seconds
            # The paper's iBatch batches only pulls. `ibatch` batches pushes too, so it has no figure of the paper.
            paper = IBATCH_PAPER[row.case][1] if row.algorithm == "bigdl" and row.case in IBATCH_PAPER else None
            figure = f"{paper} x on {IBATCH_NODES}: {paper / IBATCH_NODES:.2f} of linear" if paper else "-"
            ours = f"{speedup:.2f} x: {speedup / row.world:.2f} of linear; {seconds(row)}"
            rival = data.row("bigdl-scaling", algorithm="bigdl", case=row.case, world=row.world)
            verdict = beside(row, rival) if rival and row.algorithm != "bigdl" else "-"
            yield f"{row.case}, {row.world} executors: {_way(row)}", figure, ours, verdict


def _way(row: Row) -> str:
    return f"`{row.algorithm}` ({kept(row)})" if row.algorithm == "ibatch" else f"`{row.algorithm}`"


def _about(row: Row) -> str:
    delay = row.extra.get("delay")
    start = f", start-up + {delay * 1e3:g} ms" if delay else ""
    return f"{row.case}, {'local-cluster' if row.topology == 'loopback' else row.topology}{start}"


def _share(part: float, row: Row) -> str:
    return f"{part * 1e3:.3g} ms, {part / row.seconds:.0%}"


def chart(data: Data) -> Chart:
    """Each system beside BigDL's optimizer."""
    groups = []
    for name in (name for names in RESULTS.values() for name in names):
        for rival in data.rows(name, algorithm="bigdl"):
            rows = data.rows(name, case=rival.case, world=rival.world)
            groups.append((_about(rival), [bar(row, unit=rival.seconds) for row in rows]))
    return Chart("Time of an iteration, in units of DistriOptimizer's median", "x", groups)


TABLES = {
    **{f"bigdl{end}": Table(PEER, rivals, names) for end, names in RESULTS.items()},
    "bigdl_overlap": Table(
        ("", "overlapped", "communication only", "computation only", "iteration"), overlap, RESULTS[""]
    ),
    "bigdl_scaling": Table(("", "paper", "ours", "beside `bigdl`"), scaling),
}
TABLES["bigdl_summary"] = summary(TABLES, [("", f"bigdl{end}", "", "") for end in RESULTS])
