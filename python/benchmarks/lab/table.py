"""The table of emulated links."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.tables import Data, Line, Table, at_most, seconds


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


TABLES = {
    "lab": Table(("", "nominal", "measured", "verdict"), lab),
}
