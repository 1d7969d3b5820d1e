"""The benchmark `peers` on an emulated network: what it prints, and that it ends with an error if it must."""

import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.arena import Arena
from lab.results import FIELDS

from sparkdl_comm.errors import LabError
from sparkdl_comm.topology import Topology

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "python" / "benchmarks"


pytestmark = pytest.mark.usefixtures("networks")


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "peers", "--topology", "star:3", "--quick", "--json", *arguments]
    env = {**os.environ, **environment}
    env.pop("SPARK_CONF_DIR", None)  # its class path is without BigDL's jars
    return subprocess.run(command, capture_output=True, text=True, timeout=800, check=False, env=env)


def rows(*arguments: str) -> list[dict[str, Any]]:
    done = bench(*arguments)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.slow
def test_gloo() -> None:
    operations = "all_reduce,broadcast,reduce"
    found = rows("--peers", "gloo", "--operations", operations)
    assert [(row["case"], row["algorithm"]) for row in found] == [
        (operation.replace("_", ""), "gloo") for operation in operations.split(",")
    ]
    for row in found:
        assert list(row) == [*FIELDS, "cpu_seconds", "calls"]
        assert row["verified"]
        assert (row["topology"], row["rate_mbit"], row["world"]) == ("star:3", 200.0, 3)
        assert row["ratio"] == pytest.approx(row["seconds"] / row["theory_seconds"])
        assert row["versions"]["torch"]


@pytest.mark.skipif(not (shutil.which("mpirun") and shutil.which("mpicc")), reason="Open MPI is not installed")
def test_openmpi() -> None:
    openmpi = ["--peers", "openmpi,openmpi-shm", "--calls", "2", "--operations", "all_reduce,broadcast,reduce"]
    found = {(row["case"], row["algorithm"]): row for row in rows(*openmpi)}
    assert found.keys() == {
        ("allreduce", "openmpi"),
        ("broadcast", "openmpi"),
        ("reduce", "openmpi"),
        ("allreduce", "openmpi-ring"),
        ("allreduce", "openmpi-shm"),
        ("broadcast", "openmpi-shm"),
        ("reduce", "openmpi-shm"),
    }
    assert all(row["verified"] and row["versions"]["openmpi"] for row in found.values())
    assert found["allreduce", "openmpi-shm"]["theory_seconds"] is None


@pytest.mark.slow
def test_a_peer_that_is_not_installed_is_skipped(tmp_path: Path) -> None:
    done = bench("--peers", "openmpi,openmpi-shm", PATH=str(tmp_path))
    assert done.returncode == 0
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        "openmpi skipped",
        "openmpi-shm skipped",
        "skipped",
    ]
    assert "libopenmpi-dev" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_training() -> None:
    found = {row["algorithm"]: row for row in rows("--peers", "torch-ddp,bigdl,sparkdl")}
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


def test_bigdl_is_looked_for_where_it_should_be(tmp_path: Path) -> None:
    done = bench("--peers", "bigdl", "--bigdl", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "")
    assert f"bigdl skipped: no BigDL in {tmp_path}: `make bigdl` installs it\n" in done.stderr


def test_bytes_that_do_not_cross_the_links_are_missed(tmp_path: Path) -> None:
    options = Namespace(topology=Topology.parse("star:2,100mbit"))
    with Arena(options, tmp_path) as arena:
        with arena.crossing(0):
            pass
        with pytest.raises(LabError, match="host 1 received 0 bytes over its link, and needs 1"), arena.crossing(1):
            pass


def test_a_peer_that_does_not_end_is_an_error() -> None:
    done = bench("--peers", "gloo", "--timeout", "0.01")
    assert done.returncode == 1
    assert "gloo failed" in done.stderr
    assert "timeout=0.01" in done.stderr
