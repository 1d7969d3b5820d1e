"""Tables of the page lp: the linear-pipeline paper's figures 3 to 5 and its table 2.

Linnan Wang, Wei Wu, George Bosilca, Richard Vuduc, Zenglin Xu: "Efficient Communications in Training Large Scale Neural
Networks", 2016.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from benchmarks.charts import Chart
from benchmarks.tables import (
    ABOUT_SUMMARY,
    MIB,
    PAPER,
    Data,
    Line,
    Table,
    at_most,
    bar,
    beside,
    of_paper,
    seconds,
)
from lab.results import Row

#: Reading of section 4.2 -> the loops of its Alg. 1 and Alg. 3. It says that Alg. 3 takes max(comm, compt), and Alg. 1 and 2
#: comm + compt. In the pseudo-code of section 3.3 Alg. 1 is the loop that overlaps.
READINGS = {
    "as 4.2 describes them": ("root", "root-overlap"),
    "as 3.3 numbers them": ("root-overlap", "all-reduce"),
}
#: Section 4.2: speedups by network. The key: True if LP has Alg. 3, False for Alg. 1; the other, with Alg. 1.
TRAINING_PAPER = {
    (True, "be"): {"alexnet": 2.12, "googlenet": 2.19},
    (False, "be"): {"alexnet": 1.91, "googlenet": 1.6},
    (False, "mst"): {"alexnet": 1.74, "googlenet": 1.1},
}
#: Pairs without a figure in the paper: ours, its loop, the other, its loop.
TRAINING_OURS = (
    ("lp", "all-reduce", "lp", "root"),
    ("lp", "root", "lp", "root-overlap"),
    ("lp", "all-reduce", "be", "all-reduce"),
    ("lp", "all-reduce", "mst", "all-reduce"),
)
#: Table 2, MST with Alg. 1 on four GPUs: seconds of communication and of computing. By reading, computing hides a part of
#: communication or nothing.
PROFILE_PAPER = {"alexnet": (0.77, 0.92), "googlenet": (0.046, 0.267)}
#: MST on four ranks sends a message twice over a link; an all-reduce by the links 1.5 times.
MST_SENDS, LINKS_SEND = 2.0, 1.5
#: Forward's share of computing.
FORWARD_SHARE = 1 / 3
#: Section 4.1: mean speedup over Caffe's MST, and over the BE of Open MPI, which took data through the host's memory.
SIZES_PAPER = {"broadcast": (2.3, 29.2), "reduce": (8.7, 360.55), "allreduce": (7.9, 109.2)}
SIZES = (MIB // 4, MIB, 4 * MIB, 16 * MIB)
RANKS = range(2, 10)


def training(data: Data) -> Iterator[Line]:
    for network in PROFILE_PAPER:
        rows = {(row.algorithm, str(row.extra["loop"])): row for row in data.rows(f"lp-{network}")}
        for reading, (first, third) in READINGS.items():
            for (is_third, rival), paper in TRAINING_PAPER.items():
                ours, other = rows.get(("lp", third if is_third else first)), rows.get((rival, first))
                if ours and other:
                    about, found, verdict = _compared(network, ours, other)
                    judged = of_paper(other.seconds / ours.seconds, paper[network])
                    quoted = f"{paper[network]:.2f} x: Alg. {3 if is_third else 1} beside Alg. 1, {reading}"
                    yield about, quoted, found, f"{judged}; {verdict}"
        for name, loop, other_name, other_loop in TRAINING_OURS:
            ours, other = rows.get((name, loop)), rows.get((other_name, other_loop))
            if ours and other:
                about, found, verdict = _compared(network, ours, other)
                yield about, "-", found, verdict


def _compared(network: str, ours: Row, other: Row) -> Line:
    about = f"{network}: `{ours.algorithm}`, `{ours.extra['loop']}`, beside `{other.algorithm}`"
    if other.extra["loop"] != ours.extra["loop"]:
        about += f", `{other.extra['loop']}`"
    found = f"{other.seconds / ours.seconds:.2f} x: {seconds(ours)}; {seconds(other)}"
    return about, found, beside(ours, other)


def exchanges(data: Data) -> Iterator[Line]:
    """Yield an all-reduce by the links, in times of backward: of the paper's table 2 by each reading, and as emulated."""
    for network, (communication, computing) in PROFILE_PAPER.items():
        found = {row.extra["exchange"] for row in data.rows(f"lp-{network}")}
        if found:
            summed, overlapped = _message_summed(communication), _message_overlapped(communication, computing)
            backward = computing * (1 - FORWARD_SHARE)
            by_reading = (f"{LINKS_SEND * message / backward:.2f}" for message in (summed, overlapped))
            yield network, *by_reading, ", ".join(f"{each:.2f}" for each in sorted(found))


def _message_summed(communication: float) -> float:
    """Return the seconds in which a link carries all parameters, if broadcast and reduce by MST follow computing."""
    return communication / (2 * MST_SENDS)


def _message_overlapped(communication: float, computing: float) -> float:
    """Return the same if the broadcast overlaps forward, and the reduce overlaps backward."""
    forward, backward = FORWARD_SHARE * computing, (1 - FORWARD_SHARE) * computing
    both = (communication + computing) / (2 * MST_SENDS)
    return both if MST_SENDS * both > backward else (communication + forward) / MST_SENDS


def profile(data: Data) -> Iterator[Line]:
    for network, (communication, computing) in PROFILE_PAPER.items():
        for row in data.rows(f"lp-{network}"):
            loop = str(row.extra["loop"])
            paper = "-"
            for reading, (first, _) in READINGS.items():
                if (row.algorithm, loop) == ("mst", first):
                    paper = f"{_split(communication, computing)}, {reading}"
            yield (
                f"{network}: `{row.algorithm}`, `{loop}`",
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
                verdict = "-" if paper == "-" else of_paper(fmean(ratios), float(paper))
                yield f"{case}: beside `{other}`", paper, *cells, f"{fmean(ratios):.2f}", verdict


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


def main_lines(data: Data) -> Iterator[Line]:
    """Yield the main lines of the other tables."""
    for about, paper, ours, verdict in training(data):
        if "as 4.2" in paper:
            yield about, paper, ours, verdict
    for about, paper, *_, mean, verdict in by_size(data):
        if about.endswith("`mst`"):
            yield f"{about}, mean of four sizes", f"{paper} x", f"{mean} x", verdict
    for about, first, *_, last, growth in by_ranks(data):
        if about in ("broadcast: `lp`", "broadcast: `mst`"):
            yield f"{about}, 4 MiB, from 2 ranks to 9", "-", f"{first} s to {last} s", growth
    for about, predicted, ours, verdict in by_block(data):
        if about.startswith("broadcast") and about.endswith("best"):
            yield f"{about} block", f"predicted: {predicted}", ours, verdict


def chart(data: Data) -> Chart:
    """Return the chart of iterations by loop."""
    groups = [
        (f"{network}, {loop}", [bar(row) for row in data.rows(f"lp-{network}", loop=loop)])
        for network in PROFILE_PAPER
        for loop in ("root-overlap", "root", "all-reduce")
    ]
    return Chart("Four hosts, emulated computing: seconds of an iteration, by loop", "s", groups)


TABLES = {
    "lp": Table(("", "paper, or prediction", "ours", "verdict"), main_lines, about_origins=ABOUT_SUMMARY),
    "lp_training": Table(PAPER, training),
    "lp_exchanges": Table(
        ("", "the paper's table 2, as 4.2 describes the loops", "as 3.3 numbers them", "emulated"), exchanges
    ),
    "lp_profile": Table(PAPER, profile),
    "lp_sizes": Table(("`lp`", "paper, mean", *(f"{size / MIB:g} MiB" for size in SIZES), "mean", "verdict"), by_size),
    "lp_ranks": Table(("seconds", *(f"{world} ranks" for world in RANKS), "9 beside 2"), by_ranks),
    "lp_blocks": Table(("", "predicted", "ours", "beside the fastest"), by_block),
}
