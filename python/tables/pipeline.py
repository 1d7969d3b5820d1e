"""Tables of results/lp.md: the linear-pipeline paper's figures 3 to 5 and its table 2.

Linnan Wang, Wei Wu, George Bosilca, Richard Vuduc, Zenglin Xu: "Efficient Communications in Training Large Scale Neural
Networks", 2016.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from tables.data import Data, at_most, beside, seconds

from sparkdl_comm.lab.results import Row

Line = tuple[str, ...]
MIB = 1 << 20
#: `collective.loop` by the paper's name.
LOOPS = {"root-overlap": "Alg. 1", "root": "Alg. 2", "all-reduce": "Alg. 3"}
#: Section 4.2: how many times as fast training was, by network: (ours, its loop, the other, its loop) -> the factor.
TRAINING_PAPER: dict[tuple[str, str, str, str], dict[str, float]] = {
    ("lp", "all-reduce", "be", "root-overlap"): {"alexnet": 2.12, "googlenet": 2.19},
    ("lp", "root-overlap", "be", "root-overlap"): {"alexnet": 1.91, "googlenet": 1.6},
    ("lp", "root-overlap", "mst", "root-overlap"): {"alexnet": 1.74, "googlenet": 1.1},
    ("lp", "all-reduce", "lp", "root"): {},
    ("lp", "root", "lp", "root-overlap"): {},
    ("lp", "all-reduce", "be", "all-reduce"): {},
    ("lp", "all-reduce", "mst", "all-reduce"): {},
}
#: Table 2, MST with Alg. 1: seconds of communication that nothing hides, and of computing.
PROFILE_PAPER = {"alexnet": (0.77, 0.92), "googlenet": (0.046, 0.267)}
#: Section 4.1: mean speedup over Caffe's MST, and over the BE of Open MPI, which took data through the host's memory.
SIZES_PAPER = {"broadcast": (2.3, 29.2), "reduce": (8.7, 360.55), "allreduce": (7.9, 109.2)}
SIZES = (MIB // 4, MIB, 4 * MIB, 16 * MIB)
RANKS = range(2, 10)


def training(data: Data) -> Iterator[Line]:
    for network in PROFILE_PAPER:
        rows = {(row.algorithm, str(row.extra["loop"])): row for row in data.rows(f"lp-{network}")}
        for (name, loop, other_name, other_loop), paper in TRAINING_PAPER.items():
            ours, other = rows.get((name, loop)), rows.get((other_name, other_loop))
            if ours and other:
                told = f"{paper[network]:.2f} x" if network in paper else "-"
                about = f"{network}: `{name}`, {LOOPS[loop]}, beside `{other_name}`, {LOOPS[other_loop]}"
                found = f"{other.seconds / ours.seconds:.2f} x: {seconds(ours)}; {seconds(other)}"
                yield about, told, found, beside(ours, other)


def profile(data: Data) -> Iterator[Line]:
    for network, (hidden, computing) in PROFILE_PAPER.items():
        for row in data.rows(f"lp-{network}"):
            loop = str(row.extra["loop"])
            paper = "-"
            if (row.algorithm, loop) == ("mst", "root-overlap"):
                paper = _split(hidden, computing)
            yield (
                f"{network}: `{row.algorithm}`, {LOOPS[loop]}",
                paper,
                _split(row.seconds - row.extra["computing"], row.extra["computing"]),
                f"{row.ratio:.2f} of the bound",
            )


def _split(communication: float, computing: float) -> str:
    share = communication / (communication + computing)
    return f"{communication:.3g} s beyond {computing:.3g} s: {share * 100:.1f} %"


def by_size(data: Data) -> Iterator[Line]:
    rows = {(row.case, row.algorithm, row.bytes): row for row in data.rows("lp-sizes")}
    for case, (mst, openmpi) in SIZES_PAPER.items():
        for other, paper in (("mst", f"{mst:g}"), ("be", "-"), ("openmpi", f"{openmpi:g}"), ("gloo", "-")):
            pairs = [(rows.get((case, "lp", size)), rows.get((case, other, size))) for size in SIZES]
            ratios = [theirs.seconds / ours.seconds for ours, theirs in pairs if ours and theirs]
            if len(ratios) == len(SIZES):
                cells = (f"{ratio:.2f}" for ratio in ratios)
                yield f"{case}: beside `{other}`", paper, *cells, f"{fmean(ratios):.2f}"


def by_ranks(data: Data) -> Iterator[Line]:
    rows = {(row.case, row.algorithm, row.world): row for row in data.rows("lp-ranks")}
    for case in SIZES_PAPER:
        for name in ("lp", "mst", "be", "openmpi", "gloo"):
            found = [row for row in (rows.get((case, name, world)) for world in RANKS) if row]
            if len(found) == len(RANKS):
                first, last = found[0], found[-1]
                yield f"{case}: `{name}`", *map(_short, found), f"{last.seconds / first.seconds:.2f} x"


def _short(row: Row) -> str:
    return f"{row.seconds:.3g}"


def by_block(data: Data) -> Iterator[Line]:
    for case in SIZES_PAPER:
        rows = sorted(data.rows("lp-blocks", algorithm="lp", case=case), key=lambda row: row.extra["block"])
        least = min((row.seconds for row in rows), default=0.0)
        for row in rows:
            chosen = row.extra["best"]
            about = f"{case}, {row.extra['block']:,} bytes" + (", the model's best" if chosen else "")
            verdict = (
                f"of the fastest: {at_most(row.seconds / least, 1.05)}" if chosen else f"{row.seconds / least:.2f}"
            )
            yield about, f"{row.extra['predicted']:.3g} s", seconds(row), verdict
