"""bench_lab prints a row for making a lab and one for its links."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import bench_lab
import pytest

PROGRAM = Path(__file__).parents[2] / "python" / "bench_lab.py"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "--quick", "--json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_rows(networks: None) -> None:
    done = bench()
    made, links = json.loads(done.stdout)
    assert (made["case"], made["topology"], made["rate_mbit"], made["verified"]) == ("set-up", "star:3", 100.0, True)
    assert made["seconds"] > 0
    assert (links["case"], links["links"], links["theory_seconds"]) == ("links", 6, 0.5)
    assert 0 < links["slowest"] <= 1 / links["ratio"] <= links["fastest"]
    # Whether links are off is for a quiet machine to judge; that the exit status says so, is not.
    assert done.returncode == int(not links["verified"])
    assert links["verified"] == (links["slowest"] >= 0.92 and links["fastest"] <= 1.08)


@pytest.mark.parametrize("arguments", [["--topologies", "ring:3"], ["--rates", "fast"]])
def test_bad_arguments(arguments: list[str], refused: Callable[..., str]) -> None:
    assert arguments[1] in refused(bench_lab.main, *arguments)
