"""The table of `ps` beside `gloo`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.charts import Chart
from benchmarks.tables import Data, Line, Table, bar, beside, seconds
from lab.results import Row


def pairs(data: Data) -> Iterator[tuple[Row, Row]]:
    return data.pairs("ps", {"ps": ["gloo"]}, "case", "world")


def ps(data: Data) -> Iterator[Line]:
    for ours, gloo in pairs(data):
        about = f"{ours.case}, {ours.extra['parameters']:,} parameters, {ours.world} executors"
        yield about, seconds(gloo), seconds(ours), beside(ours, gloo)


def chart(data: Data) -> Chart:
    """Return `ps` beside `gloo`."""
    groups = [
        (f"{ours.case}, {ours.world} executors", [bar(row, unit=gloo.seconds) for row in (ours, gloo)])
        for ours, gloo in pairs(data)
    ]
    return Chart("Time of an iteration, in units of the median of gloo", "x", groups)


TABLES = {
    "ps": Table(("network", "`gloo` in the same run", "`ps`", "verdict"), ps),
}
