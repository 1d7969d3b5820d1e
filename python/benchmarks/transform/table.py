"""The table of `transform` beside functions that are written by hand."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.tables import Data, Line, Table, beside, seconds


def transform(data: Data) -> Iterator[Line]:
    rivals = {"transform": ("pandas_udf", "pandas_udf chunks"), "transform all": ("pandas_udf all",)}
    for name, ways in rivals.items():
        for ours in data.rows("transform", algorithm=name):
            for way in ways:
                other = data.row("transform", algorithm=way, case=ours.case)
                if other:
                    about = f"{ours.case}, `{name}`, {ours.extra['rows']:,} rows"
                    yield about, f"`{way}`: {seconds(other)}", seconds(ours), beside(ours, other)


TABLES = {
    "transform": Table(("", "by hand, in the same run", "ours", "verdict"), transform),
}
