"""Rows with more bytes than a rank may have memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import slow
from tests.unit import little_memory
from tests.unit.disk_helpers import left


@pytest.mark.parametrize("cache", [slow("disk"), "memory"])
def test_rows_larger_than_memory_train_from_the_disk_alone(tmp_path: Path, cache: str) -> None:
    """In memory the same rows are refused, which shows that the limit is one."""
    ran = subprocess.run(
        [sys.executable, "-m", little_memory.__name__, cache, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    rows = little_memory.BATCHES * little_memory.ROWS
    assert rows * little_memory.WIDTH * 4 > 1.5 * little_memory.MORE
    assert ran.stdout.strip() == (str(rows * little_memory.EPOCHS) if cache == "disk" else "refused"), ran.stderr
    assert cache == "memory" or left(tmp_path) == []
