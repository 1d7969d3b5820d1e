"""What races on emulated hosts took, to stand beside their predictions."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lab.results import read


class Raced(NamedTuple):
    """Seconds that all updates took in each race of a system, and the commit at which it was measured."""

    seconds: list[float]
    commit: str | None


def raced(folder: Path, setting: str, system: str) -> Raced | None:
    """None if there is no such result of ``bench_fabric.py --train`` in the folder."""
    system = system.removesuffix("-30")
    kind = "server" if system in ("fabric", "async") else system
    path = folder / f"fabric-trained-{setting}-{kind}.json"
    if not path.exists():
        return None
    results = read(path)
    [row] = [row for row in results.rows if row.algorithm == system]
    return Raced([curve[-1][0] for curve in row.extra["curves"]], results.origin.commit)
