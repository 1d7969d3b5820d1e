"""The table of `transform` beside hand-written functions."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.charts import Chart
from benchmarks.tables import Data, Line, Table, bar, beside, seconds

RIVALS = {"transform": ("pandas_udf", "pandas_udf chunks"), "transform all": ("pandas_udf all",)}
#: Series of the chart, by the columns that are added.
CHART = {
    "one column": {way: way for way in ("transform", *RIVALS["transform"])},
    "three columns": {"transform all": "transform", "pandas_udf all": "pandas_udf chunks"},
}


def transform(data: Data) -> Iterator[Line]:
    for name, rivals in RIVALS.items():
        for ours, other in data.pairs("transform", {name: rivals}, "case"):
            about = f"{ours.case}, `{name}`, {ours.extra['rows']:,} rows"
            yield about, f"`{other.algorithm}`: {seconds(other)}", seconds(ours), beside(ours, other)


def chart(data: Data) -> Chart:
    """Return the chart of all scorers, by the columns that they add."""
    groups = []
    for case in dict.fromkeys(row.case for row in data.rows("transform")):
        for columns, series in CHART.items():
            rows = [row for row in data.rows("transform", case=case) if row.algorithm in series]
            groups.append((f"{case}, {columns}", [bar(row, series[row.algorithm]) for row in rows]))
    return Chart("Two executors: seconds to score all rows", "s", groups)


TABLES = {
    "transform": Table(("", "by hand, in the same run", "ours", "verdict"), transform),
}
