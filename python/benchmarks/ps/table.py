"""The table of `ps` beside `gloo`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.tables import Data, Line, Table, beside, seconds


def ps(data: Data) -> Iterator[Line]:
    for ours in data.rows("ps", algorithm="ps"):
        gloo = data.row("ps", algorithm="gloo", case=ours.case, world=ours.world)
        if gloo:
            about = f"{ours.case}, {ours.extra['parameters']:,} parameters, {ours.world} executors"
            yield about, seconds(gloo), seconds(ours), beside(ours, gloo)


TABLES = {
    "ps": Table(("network", "`gloo` in the same run", "`ps`", "verdict"), ps),
}
