"""The table of `ps` beside `gloo`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.charts import Chart
from benchmarks.tables import Data, Line, Table, bar, beside, seconds
from lab.results import Row


def pairs(data: Data) -> Iterator[tuple[Row, Row]]:
    """Iterate over pairs of `ps` and `gloo` on the same network and executors."""
    for ours in data.rows("ps", algorithm="ps"):
        gloo = data.row("ps", algorithm="gloo", case=ours.case, world=ours.world)
        if gloo:
            yield ours, gloo


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
