"""Tables of collectives beside the bound of their links, and beside peers."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.charts import Chart
from benchmarks.scale.figures import FIG5
from benchmarks.tables import MIB, PAPER, PEER, Data, Line, Table, at_most, bar, beside, seconds, summary, with_theory
from lab.results import Row

#: The BML paper's figure 5. Unit: the time that one link needs for all bytes.
FIG5_PAPER = {(algorithm, topology): formula for algorithm, topology, formula in FIG5}
#: Series of the chart over one NIC; `bml` on two NICs stands beside them.
CHART = ("ring", "gloo", "lp", "openmpi")


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


def pipeline(data: Data, name: str) -> Iterator[Line]:
    for row in data.rows(name, algorithm="lp"):
        about = f"{row.case}, {row.world} ranks, {row.bytes / MIB:g} MiB"
        yield about, f"bytes / rate: {row.theory_seconds:.3g} s", seconds(row), at_most(row.ratio or 0, 1.08)


def fig5(data: Data, name: str) -> Iterator[Line]:
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


def rails(data: Data) -> Iterator[Line]:
    for row in data.rows("collectives-rails", case="allreduce"):
        rates = " + ".join(f"{rate:g}" for rate in row.extra["rates"])
        about = f"{_size(row)}, {rates} Mbit/s"
        yield about, f"{row.theory_seconds:.3g} s", seconds(row), at_most(row.ratio or 0, 1.08)


def chart(data: Data) -> Chart:
    """Return `bml` on two NICs per host beside algorithms and peers on one."""
    groups = []
    for bml in data.rows("collectives-bcube-3-2", algorithm="bml"):
        rows = data.rows("collectives-star", case="allreduce", bytes=bml.bytes)
        one_nic = [bar(row) for way in CHART for row in rows if row.algorithm == way]
        if one_nic:
            groups.append((f"{bml.bytes / MIB:g} MiB", [bar(bml, "bml, two NICs"), *one_nic]))
    return Chart("Nine hosts, links of 200 Mbit/s: seconds of an all-reduce", "s", groups)


TABLES = {
    "collectives": Table(("all-reduce", "paper, or peer", "ours", "verdict"), collectives),
    "pipeline": Table(PAPER, pipeline, ("lp-2", "lp-9")),
    "fig5": Table(("", "paper's formula, T_F", "ours, T_F", "verdict"), fig5, ("fig5-bcube", "fig5-fattree")),
    "loopback": Table(PEER, loopback),
    "rails": Table(("all-reduce", "the links' time", "ours", "verdict"), rails),
}
TABLES["collectives_summary"] = summary(
    TABLES,
    [
        ("all-reduce, ", "collectives", "`bml`, bcube:3,2, 4 MiB", "the links"),
        ("all-reduce, ", "collectives", "`bml`, bcube:3,2, 16 MiB", ""),
        ("all-reduce, ", "collectives", "`bml`, bcube:2,3, 4 MiB", ""),
        ("all-reduce, ", "collectives", "`bml`, bcube:2x3, 16 MiB", ""),
        ("all-reduce, ", "collectives", "`ring`, star:9, 16 MiB", "gloo"),
        ("all-reduce, ", "collectives", "`ring`, star:9, 16 MiB", "openmpi:"),
        ("`lp`, ", "pipeline", "broadcast, 9 ranks, 64 MiB", ""),
        ("`lp`, ", "pipeline", "reduce, 9 ranks, 64 MiB", ""),
        ("rails that differ, ", "rails", "`bml`, bcube:3,2, 16 MiB", ""),
        ("figure 5, ", "fig5", "`bml`", ""),
        ("loopback, ", "loopback", "`ring`, loopback, 1 MiB", "gloo"),
    ],
)
