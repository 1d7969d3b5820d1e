"""The table of training beside DDP and BigDL."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.tables import PEER, Data, Line, Table, beside, with_theory


def peers(data: Data) -> Iterator[Line]:
    others = {"torch-ddp": "DDP", "bigdl-mkl": "BigDL, MKL", "bigdl-mkldnn": "BigDL, mkldnn"}
    for name, fits in (("peers-star3", ""), ("peers-star3-warm", ", fits of 60 steps"), ("peers-star9", "")):
        for ours in data.rows(name, case="training"):
            if not ours.algorithm.startswith("sparkdl-"):
                continue
            for other in data.rows(name, case="training", bytes=ours.bytes):
                if other.algorithm in others:
                    about = f"`{ours.algorithm.removeprefix('sparkdl-')}`, {ours.topology}, {ours.bytes:,} bytes{fits}"
                    theirs = f"{others[other.algorithm]}: {with_theory(other)}"
                    yield about, theirs, with_theory(ours), beside(ours, other)


TABLES = {
    "peers": Table(PEER, peers),
}
