"""What ranks leave on an executor's disk."""

from __future__ import annotations

from pathlib import Path


def left(folder: Path) -> list[str]:
    """The folders, of caches and of ranks that are writing."""
    return sorted(path.name for path in (folder / "sparkdl-rows").glob("*/"))
