"""The table of emulated links."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.tables import Data, Line, Table, at_most, seconds


def lab(data: Data) -> Iterator[Line]:
    links = data.rows("lab", case="links")
    for topology in dict.fromkeys(row.topology for row in links):
        rows = [row for row in links if row.topology == topology]
        slowest, fastest = min(row.extra["slowest"] for row in rows), max(row.extra["fastest"] for row in rows)
        verdict = at_most(max(abs(1 - slowest), abs(1 - fastest)) * 100, 8)
        yield (
            f"{rows[0].extra['links']} links of {topology}, both ways at once",
            f"{', '.join(f'{row.rate_mbit:g}' for row in rows)} Mbit/s",
            f"{slowest:.3f} to {fastest:.3f} of it",
            f"off by at most 8 %: {verdict} %",
        )
    for row in data.rows("lab", case="set-up", rate_mbit=100.0):
        yield f"set-up of {row.topology}", "-", seconds(row), "-"


TABLES = {
    "lab": Table(("", "nominal", "measured", "verdict"), lab),
}
