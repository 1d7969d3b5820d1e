"""python/bench_transform.py runs and verifies what it times."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")  # sets SPARK_HOME to a copy that executors may write to, and the Python to use
def test_every_row_is_verified():
    done = subprocess.run(
        [sys.executable, str(ROOT / "python/bench_transform.py"), "--quick", "--json", "--rows", "600"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout)
    ways = ["pandas_udf", "pandas_udf chunks", "transform", "pandas_udf all", "transform all"]
    assert [(row["case"], row["algorithm"]) for row in rows] == [(c, way) for c in ("lenet", "tabular") for way in ways]
    assert all(row["verified"] and row["rows_per_second"] > 0 for row in rows)
    assert ["ratio_to_hand_written" in row for row in rows] == [False, False, True, False, True] * 2
