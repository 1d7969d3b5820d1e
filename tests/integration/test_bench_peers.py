"""bench_peers on an emulated network: what it prints, and that it ends with an error if it must."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkdl_comm.errors import LabUnavailableError
from sparkdl_comm.lab import Lab
from sparkdl_comm.lab.bench import FIELDS

PROGRAM = Path(__file__).parents[2] / "python" / "bench_peers.py"


@pytest.fixture(scope="module", autouse=True)
def _lab_allowed() -> None:
    try:
        with Lab("star:2", rate="200mbit"):
            pass
    except LabUnavailableError as error:
        pytest.skip(str(error))


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "--topology", "star:3", "--quick", "--json", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=env)


def rows(*arguments: str) -> list[dict[str, Any]]:
    done = bench(*arguments)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_gloo() -> None:
    found = rows("--peers", "gloo")
    assert [(row["case"], row["algorithm"]) for row in found] == [("allreduce", "gloo"), ("broadcast", "gloo")]
    for row in found:
        assert list(row) == list(FIELDS)
        assert row["verified"]
        assert (row["topology"], row["rate_mbit"], row["world"]) == ("star:3", 200.0, 3)
        assert row["ratio"] == pytest.approx(row["seconds"] / row["theory_seconds"])
        assert row["versions"]["torch"]


@pytest.mark.skipif(not (shutil.which("mpirun") and shutil.which("mpicc")), reason="Open MPI is not installed")
def test_openmpi() -> None:
    found = {(row["case"], row["algorithm"]): row for row in rows("--peers", "openmpi,openmpi-shm")}
    assert found.keys() == {
        ("allreduce", "openmpi"),
        ("broadcast", "openmpi"),
        ("allreduce", "openmpi-ring"),
        ("allreduce", "openmpi-shm"),
        ("broadcast", "openmpi-shm"),
    }
    assert all(row["verified"] and row["versions"]["openmpi"] for row in found.values())
    assert found["allreduce", "openmpi-shm"]["theory_seconds"] is None


def test_a_peer_that_is_not_installed_is_skipped(tmp_path: Path) -> None:
    done = bench("--peers", "openmpi,openmpi-shm", PATH=str(tmp_path))
    assert done.returncode == 0
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["openmpi skipped", "openmpi-shm skipped"]
    assert "libopenmpi-dev" in done.stderr


def test_a_peer_that_does_not_end_is_an_error() -> None:
    done = bench("--peers", "gloo", "--timeout", "0.01")
    assert done.returncode == 1
    assert "gloo failed" in done.stderr
    assert "timeout=0.01" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "ring:3"], "unknown kind 'ring'"),
        (["--topology", "bcube:2,2"], "one NIC per host"),
        (["--rate", "inf"], "infinity"),
        (["--peers", "gloo,nccl"], "unknown peers nccl"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
