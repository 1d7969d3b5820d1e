"""A model above 2 GB, from the factory to the driver; takes 17 GB of memory for about two minutes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import spark_home
from tests.faults.processes import VARIABLE

ROOT = Path(__file__).parents[2]
GIB = 1 << 30


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(580)
def test_a_model_above_2_gb_trains_and_comes_back(tmp_path):
    if psutil.virtual_memory().available < 18 * GIB:
        pytest.skip("needs 18 GiB of free memory")
    environment = {
        **os.environ,
        **spark_home.environment(tmp_path),
        VARIABLE: "large",
        "PYSPARK_SUBMIT_ARGS": "--driver-memory 1g pyspark-shell",
    }
    program = [sys.executable, str(ROOT / "tests/integration/large_fit.py"), "local-cluster[2,1,5120]", "2"]
    done = subprocess.run(
        program, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=540, check=False
    )
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert reports, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    report = json.loads(reports[0].removeprefix("REPORT "))
    print(json.dumps({name: f"{size / GIB:.1f} GiB" for name, size in report["peaks"].items() if size > GIB / 10}))
    assert report["parameters"] * 4 > 2 * GIB
    assert report["summary"]["bytes"] == {"pull": 4 * report["parameters"], "push": 4 * report["parameters"]}
    assert max(report["off"].values()) < 1e-5
    # The driver's JVM could not have held the model, nor a part of it of this size.
    assert report["driver_heap"] <= GIB < report["parameters"] * 4
