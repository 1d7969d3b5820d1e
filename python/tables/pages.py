"""The tables of the pages in python/results: which results are in them, and what is made of these.

A table is a function that gives its lines; of results that do not exist yet it gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from lab.results import Row
from simulating.scale import FIG5
from tables import batching, bigdl, compression
from tables import pipeline as lp
from tables.data import Data, at_most, beside, of_range, seconds, with_theory
from tables.fabric import (
    fabric_bounds,
    fabric_lags,
    fabric_lda,
    fabric_predicted,
    fabric_replicated,
    fabric_scheduler,
    fabric_simulated,
    fabric_trained,
    fabric_trained_alone,
)
from tables.scale import (
    AUTO_SMALL,
    scale_auto,
    scale_auto_regrets,
    scale_blind,
    scale_cells,
    scale_commlib,
    scale_errors,
    scale_fig4,
    scale_fig5,
    scale_greedy,
    scale_ibatch,
    scale_ibatch_split,
    scale_predict,
    scale_size,
)

Line = tuple[str, ...]
MIB = 1 << 20
#: The BML paper's figures 6 and 7, less time than its parameter server: the least and the most, %.
JOBS_PAPER = {"lenet5": (18.7, 56.4), "vgg19": (29.2, 52.1)}
#: The BML paper's figure 5, in times that a link needs for all bytes.
FIG5_PAPER = {(algorithm, topology): formula for algorithm, topology, formula in FIG5}


@dataclass(frozen=True)
class Table:
    columns: Line
    lines: Callable[[Data], Iterator[Line]]


def ps(data: Data) -> Iterator[Line]:
    for ours in data.rows("ps", algorithm="ps"):
        gloo = data.row("ps", algorithm="gloo", case=ours.case, world=ours.world)
        if gloo:
            about = f"{ours.case}, {ours.extra['parameters']:,} parameters, {ours.world} executors"
            yield about, seconds(gloo), seconds(ours), beside(ours, gloo)


def peers(data: Data) -> Iterator[Line]:
    others = {"torch-ddp": "DDP", "bigdl-mkl": "BigDL, MKL", "bigdl-mkldnn": "BigDL, mkldnn"}
    for name, fits in (("peers-star3", ""), ("peers-star3-warm", ", fits of 60 steps"), ("peers-star9", "")):
        for ours in data.rows(name, case="training"):
            if not ours.algorithm.startswith("sparkdl-"):
                continue
            for other in data.rows(name, case="training", bytes=ours.bytes):
                if other.algorithm in others:
                    about = f"`{ours.algorithm.removeprefix('sparkdl-')}`, {ours.topology}, {ours.bytes:,} bytes{fits}"
                    theirs = f"{others[other.algorithm]}: {with_theory(other)}"
                    yield about, theirs, with_theory(ours), beside(ours, other)


def lab(data: Data) -> Iterator[Line]:
    for row in data.rows("lab", case="links"):
        slowest, fastest = row.extra["slowest"], row.extra["fastest"]
        verdict = at_most(max(abs(1 - slowest), abs(1 - fastest)) * 100, 8)
        about = f"{row.extra['links']} links of {row.topology}, both ways at once"
        yield (
            about,
            f"{row.rate_mbit:g} Mbit/s",
            f"{slowest:.3f} to {fastest:.3f} of it",
            f"off by at most 8 %: {verdict} %",
        )
    for row in data.rows("lab", case="set-up", rate_mbit=100.0):
        yield f"set-up of {row.topology}", "-", seconds(row), "-"


def collectives(data: Data) -> Iterator[Line]:
    star = data.rows("collectives-star", case="allreduce")
    for name, aim in (("bcube-3-2", 1.08), ("bcube-2-3", 1.10), ("bcube-2x3", 1.10)):
        for row in data.rows(f"collectives-{name}", algorithm="bml", case="allreduce"):
            yield _size(row), f"the links' time: {row.theory_seconds:.3g} s", seconds(row), at_most(row.ratio or 0, aim)
            rivals = [other for other in star if (other.bytes, other.world) == (row.bytes, row.world)]
            if rivals:
                best = min(rivals, key=lambda other: other.seconds)
                yield (
                    f"{_size(row)}, beside one NIC",
                    f"{_size(best)}: {seconds(best)}",
                    seconds(row),
                    beside(row, best),
                )
    for row in star:
        if row.algorithm in ("ring", "be", "p2p-ps", "lp", "torus2d"):
            for other in star:
                if other.algorithm in ("gloo", "openmpi", "openmpi-ring") and other.bytes == row.bytes:
                    yield _size(row), f"{other.algorithm}: {with_theory(other)}", with_theory(row), beside(row, other)


def _size(row: Row) -> str:
    size = f"{row.bytes / MIB:g} MiB" if row.bytes % MIB == 0 else f"{row.bytes:,} bytes"
    return f"`{row.algorithm}`, {row.topology}, {size}"


def pipeline(data: Data) -> Iterator[Line]:
    for name in ("lp-2", "lp-9"):
        for row in data.rows(name, algorithm="lp"):
            about = f"{row.case}, {row.world} ranks, {row.bytes / MIB:g} MiB"
            yield about, f"bytes / rate: {row.theory_seconds:.3g} s", seconds(row), at_most(row.ratio or 0, 1.08)


def fig5(data: Data) -> Iterator[Line]:
    for name in ("fig5-bcube", "fig5-fattree"):
        for row in data.rows(name, case="allreduce"):
            paper = FIG5_PAPER[row.algorithm, row.topology]
            links = row.bytes * 8 / (row.rate_mbit or 1) / 1e6
            ours = row.seconds / links
            verdict = f"{ours / paper:.2f} of the formula"
            yield f"`{row.algorithm}`, {row.topology}", f"{paper:.2f}", f"{ours:.2f}: {seconds(row)}", verdict


def loopback(data: Data) -> Iterator[Line]:
    for row in data.rows("loopback", algorithm="ring", case="allreduce"):
        for other in data.rows("loopback", case="allreduce", bytes=row.bytes):
            if other is not row and other.algorithm != "ring":
                cells = (
                    f"{one.extra['bus_gb_per_s']:.2f} GB/s, {one.extra['cpu_s_per_gb']:.2f} CPU s/GB"
                    for one in (other, row)
                )
                theirs, ours = cells
                yield _size(row), f"{other.algorithm}: {theirs}", ours, beside(row, other)


def jobs(data: Data, results: str) -> Iterator[Line]:
    for name, (least, most) in JOBS_PAPER.items():
        for bml in data.rows(f"{results}-{name}", algorithm="bml"):
            rows, rate = bml.extra["rows"], bml.extra["teraflops"]
            about = f"{name}, {rows} rows of a rank, computing {bml.extra['computing']:.3g} s at {rate:g} teraflop/s"
            for rival, paper in (("p2p-ps", f"-{least} to -{most} %"), ("ddp", "-"), ("gloo", "-")):
                other = data.row(f"{results}-{name}", algorithm=rival, rows=rows, teraflops=rate)
                if other:
                    change = f"{(bml.seconds / other.seconds - 1) * 100:+.1f} %"
                    ours = f"{change}: {seconds(bml)}, `{rival}` {seconds(other)}"
                    judged = f"{of_range(1 - bml.seconds / other.seconds, least, most)}; " if paper != "-" else ""
                    yield f"{about}: `bml` beside `{rival}`", paper, ours, f"{judged}{beside(bml, other)}"


def job_loops(data: Data) -> Iterator[Line]:
    for name in ("jobs-loops-star", "jobs-loops-bcube", "jobs-loops-bcube-2-2"):
        for ours in data.rows(name, loop="decoupled"):
            exchange = ours.extra["exchange"]
            about = f"`{ours.algorithm}`, {ours.topology}, exchange {exchange:g} x backward"
            yield about, f"the bound: {ours.theory_seconds:.3g} s", seconds(ours), at_most(ours.ratio or 0, 1.10)
            for rival in (ours.algorithm, "ddp"):
                other = data.row(name, algorithm=rival, loop="all-reduce", exchange=exchange)
                if other:
                    theirs = f"`{rival}`, all-reduce: {seconds(other)}"
                    yield about, theirs, seconds(ours), beside(ours, other)


def job_batches(data: Data) -> Iterator[Line]:
    """Buckets that iBatch's planner cuts beside those of two sizes, from each of which a fit begins."""
    for name in ("jobs-batched", "jobs-batched-small"):
        for ours in data.rows(name, loop="decoupled+ibatch"):
            exchange = ours.extra["exchange"]
            sized = data.row(
                name, algorithm=ours.algorithm, topology=ours.topology, loop="decoupled", exchange=exchange
            )
            about = f"`{ours.algorithm}`, {ours.topology}, exchange {exchange:g} x backward"
            is_planned = ours.extra["decisions"][-1]["chosen"].endswith("ibatch")
            told = f"{ours.extra['buckets']} buckets, {'planned' if is_planned else 'by size'}: {seconds(ours)}"
            yield about, f"the bound: {ours.theory_seconds:.3g} s", told, at_most(ours.ratio or 0, 1.10)
            if sized:
                verdict = beside(ours, sized) if is_planned else "stays with these"
                yield about, f"{sized.extra['buckets']} buckets by size: {seconds(sized)}", told, verdict


def jobs_real(data: Data) -> Iterator[Line]:
    """By Spark: `bml` on two NICs beside what there is for one."""
    least, most = JOBS_PAPER["lenet5"]
    others = {row.algorithm: row for row in data.rows("jobs-real-star")}
    for bml in data.rows("jobs-real-bcube", algorithm="bml"):
        for rival, paper in (("whole", f"-{least} to -{most} %"), ("ring", "-")):
            other = others.get(rival)
            if other:
                name = "ps" if rival == "whole" else rival
                about = f"{bml.case}, {bml.topology}: `bml` beside `{name}`, {other.topology}"
                change = f"{(bml.seconds / other.seconds - 1) * 100:+.1f} %"
                judged = f"{of_range(1 - bml.seconds / other.seconds, least, most)}; " if paper != "-" else ""
                yield about, paper, f"{change}: {seconds(bml)}; {seconds(other)}", f"{judged}{beside(bml, other)}"


def rails(data: Data) -> Iterator[Line]:
    for row in data.rows("collectives-rails", case="allreduce"):
        rates = " + ".join(f"{rate:g}" for rate in row.extra["rates"])
        about = f"{_size(row)}, {rates} Mbit/s"
        yield about, f"{row.theory_seconds:.3g} s", seconds(row), at_most(row.ratio or 0, 1.08)


def fetch(data: Data) -> Iterator[Line]:
    conversions = [(f"{wire} {way}", "memcpy") for wire in ("bf16", "fp16") for way in ("encode", "decode")]
    fetches = [("fetch", "fetchBlockSync"), ("notice", "fetchBlockSync"), ("at once", "in turn")]
    pairs = [*fetches, ("same host", "memcpy"), *conversions]
    for way, rival in pairs:
        for ours in data.rows("fetch", algorithm=way):
            other = data.row("fetch", algorithm=rival, case=ours.case, bytes=ours.bytes, world=ours.world)
            if other:
                about = f"`{way}`, {ours.bytes / 1024:g} KiB from {ours.case}, {ours.world} executors"
                yield about, f"`{rival}`: {seconds(other)}", seconds(ours), beside(ours, other)


def fetch_windows(data: Data) -> Iterator[Line]:
    """On each link, the window that follows it beside the fastest of the fixed ones."""
    for name in ("fetch-windows", "fetch-windows-loopback"):
        for ours in data.rows(name, algorithm="own"):
            beside_it = data.rows(name, rate_mbit=ours.rate_mbit, bytes=ours.bytes)
            best = min((row for row in beside_it if row.algorithm != "own"), key=lambda row: row.seconds)
            window = int(best.algorithm.removeprefix("fixed ")) / 1024
            link = f"{ours.rate_mbit:g} Mbit/s" if ours.rate_mbit else "loopback"
            about = f"{link}, {ours.bytes / MIB:.3g} MiB from {ours.case}"
            verdict = at_most(ours.seconds / best.seconds, 1.03)
            yield about, f"{window:g} KiB: {with_theory(best)}", with_theory(ours), verdict


def transform(data: Data) -> Iterator[Line]:
    rivals = {"transform": ("pandas_udf", "pandas_udf chunks"), "transform all": ("pandas_udf all",)}
    for name, ways in rivals.items():
        for ours in data.rows("transform", algorithm=name):
            for way in ways:
                other = data.row("transform", algorithm=way, case=ours.case)
                if other:
                    about = f"{ours.case}, `{name}`, {ours.extra['rows']:,} rows"
                    yield about, f"`{way}`: {seconds(other)}", seconds(ours), beside(ours, other)


PAPER = ("", "paper", "ours", "verdict")
KEPT = ("", "`ibatch` kept", "ours", "verdict")
PEER = ("", "in the same run", "ours", "verdict")
SPLIT = ("", "overlapping", "communication", "computation", "iteration")
BESIDE_AUTO = ("", "in the same run", "`auto`", "verdict")
#: By the name that pages know them by.
TABLES = {
    "ps": Table(("network", "`gloo` in the same run", "`ps`", "verdict"), ps),
    "peers": Table(PEER, peers),
    "lab": Table(("", "nominal", "measured", "verdict"), lab),
    "collectives": Table(("all-reduce", "paper, or peer in the same run", "ours", "verdict"), collectives),
    "pipeline": Table(PAPER, pipeline),
    "lp_training": Table(PAPER, lp.training),
    "lp_exchanges": Table(
        ("", "the paper's table 2, as 4.2 describes the loops", "as 3.3 numbers them", "emulated"), lp.exchanges
    ),
    "lp_profile": Table(("", "paper", "ours", "verdict"), lp.profile),
    "lp_sizes": Table(
        ("`lp`", "paper, mean", *(f"{size / MIB:g} MiB" for size in lp.SIZES), "mean", "verdict"), lp.by_size
    ),
    "lp_ranks": Table(("seconds", *(f"{world} ranks" for world in lp.RANKS), "9 beside 2"), lp.by_ranks),
    "lp_blocks": Table(("", "predicted", "ours", "beside the fastest"), lp.by_block),
    "fig5": Table(("", "paper's formula, T_F", "ours, T_F", "verdict"), fig5),
    "loopback": Table(PEER, loopback),
    "jobs": Table(PAPER, partial(jobs, results="jobs")),
    "job_rates": Table(PAPER, partial(jobs, results="jobs-rates")),
    "jobs_real": Table(PAPER, jobs_real),
    "rails": Table(("all-reduce", "the links' time", "ours", "verdict"), rails),
    "job_loops": Table(("", "bound, or in the same run", "`decoupled`", "verdict"), job_loops),
    "job_batches": Table(("", "bound, or in the same run", "`ibatch`", "verdict"), job_batches),
    "ibatch": Table(KEPT, batching.networks),
    "ibatch_nodes": Table(PAPER, batching.scaling),
    "ibatch_split": Table(SPLIT, batching.split),
    "ibatch_startups": Table(PAPER, batching.startups),
    **{
        f"ibatch_{network}": Table(
            ("", "bound, or in the same run", "`ibatch`", "verdict"), partial(batching.rivals, network)
        )
        for network in ("googlenet", "inception_v3", "vgg19")
    },
    "fetch": Table(PEER, fetch),
    "fetch_windows": Table(("link", "the fastest fixed window", "ours", "verdict"), fetch_windows),
    "transform": Table(("", "by hand, in the same run", "ours", "verdict"), transform),
    "selection": Table(PEER, partial(compression.selection, results="compress-operators")),
    "selection_gpu": Table(PEER, partial(compression.selection, results="compress-gpu", operators=("mstopk", "dgc"))),
    "sparse_pushes": Table(("", "in the same run", "ours", "verdict"), compression.sparse_pushes),
    "pto": Table(("", "paper", "computed by all ranks, to dealt out", "verdict"), compression.pto),
    "cache": Table(("", "`memory`, second fit, in the same run", "ours", "verdict"), compression.cache),
    "record": Table(("", "paper", "ours", "beside `dense`"), compression.record),
    "schedule_auto": Table(BESIDE_AUTO, partial(compression.schedule_auto, results="compress-auto")),
    "schedule_auto_again": Table(BESIDE_AUTO, partial(compression.schedule_auto, results="compress-auto-rates")),
    **{
        name + end: Table(columns, partial(lines, names=names))
        for name, columns, lines, measured in compression.SEVERAL
        for end, names in measured.items()
    },
    "fabric_scheduler": Table(PAPER, fabric_scheduler),
    "fabric_simulated": Table(PAPER, fabric_simulated),
    "fabric_bounds": Table(PAPER, fabric_bounds),
    "fabric_lags": Table(PAPER, fabric_lags),
    "fabric_replicated": Table(PAPER, fabric_replicated),
    "fabric_trained": Table(PAPER, fabric_trained),
    "fabric_trained_alone": Table(PAPER, fabric_trained_alone),
    "fabric_predicted": Table(PAPER, fabric_predicted),
    "fabric_lda": Table(PAPER, fabric_lda),
    "scale_errors": Table(("", "cells", "median error", "worst", "at most 5 % and 15 %"), scale_errors),
    "scale_cells": Table(("", "measured", "simulated", "error"), scale_cells),
    "scale_blind": Table(("", "simulated before", "measured", "error"), scale_blind),
    "scale_predict": Table(("", "predicted", "measured", "error"), scale_predict),
    "scale_size": Table(
        ("", "driver, until all are in", "rank 0", "another rank", "a gathering, rank 0", "another rank"), scale_size
    ),
    "scale_fig5": Table(("", "paper's formula, T_F", "simulated, T_F", "verdict", "the simulator takes"), scale_fig5),
    "scale_fig4": Table(("", "in the same run", "`lp`, simulated", "verdict"), scale_fig4),
    "scale_commlib": Table(("", "paper, of linear scaling", "simulated", "difference"), scale_commlib),
    "scale_ibatch": Table(("", "paper: iBatch; default; layer by layer", "simulated", "verdict"), scale_ibatch),
    "scale_ibatch_split": Table(SPLIT, scale_ibatch_split),
    "scale_greedy": Table(("", "greedy 1", "greedy 2", "the better one"), scale_greedy),
    "scale_auto": Table(("", "best that stays", "`auto`, all its steps", "regret"), scale_auto),
    "scale_auto_small": Table(
        ("", "best that stays", "`auto`, all its steps", "regret"), partial(scale_auto, names=AUTO_SMALL)
    ),
    "scale_auto_regrets": Table(
        ("", "cells", "median regret", "worst", "at most 3 % and 10 %, or 20 steps"), scale_auto_regrets
    ),
    "bigdl": Table(KEPT, bigdl.beside_bigdl),
    "bigdl_real": Table(KEPT, partial(bigdl.beside_bigdl, files=bigdl.LENET_FILES)),
    "bigdl_vgg": Table(KEPT, partial(bigdl.beside_bigdl, files=bigdl.VGG_FILES)),
    "bigdl_delay": Table(KEPT, partial(bigdl.beside_bigdl, files=bigdl.DELAY_FILES)),
    "bigdl_overlap": Table(("", "overlapped", "communication only", "computation only", "iteration"), bigdl.overlap),
    "bigdl_scaling": Table(("", "paper", "ours", "beside `bigdl`"), bigdl.scaling),
}
