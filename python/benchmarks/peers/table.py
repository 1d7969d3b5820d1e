"""The table of training beside DDP and BigDL."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.charts import Chart
from benchmarks.tables import PEER, Data, Line, Table, bar, beside, with_theory

#: Results, and a note on their fits.
RESULTS = {"peers-star3": "", "peers-star3-warm": ", fits of 60 steps", "peers-star9": ""}
#: Names of the systems.
NAMES = {
    "torch-ddp": "DDP",
    "sparkdl-gloo": "`gloo`",
    "sparkdl-ps": "`ps`",
    "bigdl-mkl": "BigDL, MKL",
    "bigdl-mkldnn": "BigDL, mkldnn",
}
RIVALS = {"sparkdl-ps": ("torch-ddp", "bigdl-mkl", "bigdl-mkldnn"), "sparkdl-gloo": ("torch-ddp",)}


def peers(data: Data) -> Iterator[Line]:
    for name, fits in RESULTS.items():
        for ours, other in data.pairs(name, RIVALS, "bytes"):
            about = f"{NAMES[ours.algorithm]}, {ours.topology}, {ours.bytes:,} bytes{fits}"
            theirs = f"{NAMES[other.algorithm]}: {with_theory(other)}"
            yield about, theirs, with_theory(ours), beside(ours, other)


def chart(data: Data) -> Chart:
    """Return an iteration of each system."""
    groups = []
    for name, fits in RESULTS.items():
        rows = [row for algorithm in NAMES for row in data.rows(name, algorithm=algorithm)]
        if rows:
            bars = [bar(row, NAMES[row.algorithm].strip("`")) for row in rows]
            groups.append((f"{rows[0].topology}{fits}", bars))
    return Chart("Links of 200 Mbit/s: seconds of an iteration", "s", groups)


TABLES = {
    "peers": Table(PEER, peers),
}
