"""Tables of default settings beside DDP, Horovod and gloo."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.charts import Chart
from benchmarks.ibatch.table import kept
from benchmarks.tables import PEER, Data, Line, Table, at_most, bar, beside, with_theory
from lab.results import Row

#: Systems, by the names of job.py.
DEFAULT, DDP, OTHERS = "default", ("ddp", "ddp-4", "ddp-1"), ("gloo", "horovod")
RESULTS = ("zero-star3", "zero-star8", "zero-hosts4x2", "zero-machine")


def cells(data: Data) -> Iterator[tuple[Row, list[Row]]]:
    """Yield the row of `default` of each cell, with its rivals' rows. The first one is that of DDP's fastest buckets."""
    for name in RESULTS:
        for ours in data.rows(name, algorithm=DEFAULT):
            same = data.rows(name, case=ours.case, topology=ours.topology, pull=ours.extra["pull"])
            ddp = sorted((row for row in same if row.algorithm in DDP), key=lambda row: row.seconds)
            if ddp:
                yield ours, [ddp[0], *(row for row in same if row.algorithm in OTHERS)]


def about(row: Row) -> str:
    pull = row.extra["pull"]
    return f"{row.case}, {row.topology}" + ("" if pull is None else f", a pull {pull:g} x forward")


def zero(data: Data) -> Iterator[Line]:
    absent: set[str] = set()
    for ours, rivals in cells(data):
        stays = kept(ours) if "kept" in ours.extra else f"`{ours.extra['strategy']}`"
        for rival in rivals:
            theirs = f"`{rival.algorithm}`: {with_theory(rival)}"
            yield about(ours), theirs, f"{stays}: {with_theory(ours)}", beside(ours, rival)
        absent |= {ours.extra["horovod"]} if "horovod" in ours.extra else set()
    for reason in sorted(absent):
        yield "all cells", f"`horovod` {reason}", "-", "-"


def costs(data: Data) -> Iterator[Line]:
    """Compare first steps, CPU seconds and memory with DDP's."""
    for ours, (ddp, *_) in cells(data):
        yield about(ours), *(f"{theirs}; {own}" for theirs, own in zip(_costs(ddp), _costs(ours), strict=True))


def _costs(row: Row) -> list[str]:
    seconds = [f"{row.extra[name]:.3g} s" for name in ("first_seconds", "cpu_seconds")]
    return seconds + [f"{row.extra[name] / 1e6:.0f} MB" for name in ("rank_bytes", "executor_bytes")]


def aims(data: Data) -> Iterator[Line]:
    """Compare times with the aims, as shares of the time with DDP's fastest buckets."""
    shares = [(ours.seconds / ddp.seconds, ours) for ours, (ddp, *_) in cells(data)]
    if shares:
        median = statistics.median(share for share, _ in shares)
        yield "the median cell", "at most 0.90 of DDP's time", f"{median:.2f}", at_most(median, 0.90)
    for pulls, limit in (((0.5, 1.2, 2.0, None), 1.02), ((1.2,), 0.92), ((2.0,), 0.80)):
        found = [each for each in shares if each[1].extra["pull"] in pulls]
        if found:
            share, ours = max(found, key=lambda each: each[0])
            what = "the slowest cell" if len(pulls) > 1 else f"the slowest cell with a pull {pulls[0]:g} x forward"
            yield f"{what}: {about(ours)}", f"at most {limit:.2f} of DDP's time", f"{share:.2f}", at_most(share, limit)


def chart(data: Data) -> Chart:
    """Return the times where a pull takes 1.2 times as long as forward, and on one machine."""
    groups = []
    for ours, (ddp, *others) in cells(data):
        if ours.extra["pull"] in (1.2, None):
            named = {DEFAULT: ours, "ddp": ddp, **{row.algorithm: row for row in others}}
            bars = [bar(row, name, unit=ddp.seconds) for name, row in named.items()]
            groups.append((f"{ours.case}, {ours.topology}", bars))
    return Chart("Time of a step, in units of DDP's with its fastest buckets", "x", groups)


TABLES = {
    "zero": Table(PEER, zero),
    "zero_costs": Table(("DDP; ours", "first 60 steps", "CPU, a step", "memory, rank", "memory, executor"), costs),
    "zero_aims": Table(("", "aim", "ours", "verdict"), aims),
}
