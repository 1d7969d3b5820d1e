"""Systems beside this package on an emulated network: in the benchmark `peers`, and in `collectives`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.applications import crossing
from lab import Lab
from lab.results import FIELDS

from sparkdl_comm.errors import LabError

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "python" / "benchmarks"


pytestmark = pytest.mark.usefixtures("networks")


def rows(name: str, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(PROGRAM), name, "--topology", "star:3", "--quick", "--json", *arguments]
    env = {**os.environ}
    env.pop("SPARK_CONF_DIR", None)  # its class path is without BigDL's jars
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.slow
def test_gloo() -> None:
    operations = "all_reduce,broadcast,reduce"
    words = ["--algorithms", "lp", "--peers", "gloo", "--operations", operations]
    found = [row for row in rows("collectives", *words) if row["algorithm"] == "gloo"]
    assert [row["case"] for row in found] == [operation.replace("_", "") for operation in operations.split(",")]
    for row in found:
        assert list(row) == [*FIELDS, "cpu_seconds", "calls"]
        assert row["verified"]
        assert (row["topology"], row["rate_mbit"], row["world"]) == ("star:3", 200.0, 3)
        assert row["ratio"] == pytest.approx(row["seconds"] / row["theory_seconds"])
        assert row["versions"]["torch"]


@pytest.mark.skipif(not (shutil.which("mpirun") and shutil.which("mpicc")), reason="Open MPI is not installed")
def test_openmpi() -> None:
    openmpi = ["--peers", "openmpi,openmpi-shm", "--calls", "2", "--operations", "all_reduce,broadcast,reduce"]
    found = {(row["case"], row["algorithm"]): row for row in rows("collectives", "--algorithms", "lp", *openmpi)}
    assert {key for key in found if key[1] != "lp"} == {
        ("allreduce", "openmpi"),
        ("broadcast", "openmpi"),
        ("reduce", "openmpi"),
        ("allreduce", "openmpi-ring"),
        ("allreduce", "openmpi-shm"),
        ("broadcast", "openmpi-shm"),
        ("reduce", "openmpi-shm"),
    }
    assert all(row["verified"] and row["versions"]["openmpi"] for key, row in found.items() if key[1] != "lp")
    assert found["allreduce", "openmpi-shm"]["theory_seconds"] is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_training() -> None:
    found = {row["algorithm"]: row for row in rows("peers")}
    bigdl = {"bigdl-mkl", "bigdl-mkldnn"} if (ROOT / "build" / "bigdl").exists() else set()
    assert found.keys() == {"torch-ddp", "sparkdl-ps", "sparkdl-gloo"} | bigdl
    for algorithm, row in found.items():
        assert row["verified"], algorithm
        assert (row["case"], row["topology"], row["world"], row["compute"]) == ("training", "star:3", 3, "real")
        assert row["bytes"] == pytest.approx(2**18, rel=0.01)
        # A link lets a burst pass at once, which is half of so few bytes: faster than theory, but not by much.
        assert row["ratio"] > 0.5, algorithm
        assert row["versions"]["pyspark"]
    assert all(found[algorithm]["versions"]["bigdl-dllib-spark3"] for algorithm in bigdl)


def test_bytes_that_do_not_cross_the_links_are_missed() -> None:
    with Lab("star:2,100mbit") as lab:
        with crossing(lab, 0):
            pass
        with pytest.raises(LabError, match="host 1 received 0 bytes over its link, and needs 1"), crossing(lab, 1):
            pass
