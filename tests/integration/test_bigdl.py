"""BigDL models on executors of their own, beside BigDL's own optimizer. ScalaTest of scala/bigdl has the rest, in one JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import spark_home

BIGDL = spark_home.ROOT / "build" / "bigdl"
PROGRAMS = spark_home.ROOT / "python"

#: For a program that takes two minutes where it runs alone.
SECONDS = 440
pytestmark = [pytest.mark.usefixtures("bigdl"), pytest.mark.timeout(SECONDS + 20)]


def run(program: Path, *arguments: str, folder: Path) -> str:
    environment = {**os.environ, **spark_home.environment(folder)}
    del environment["SPARK_CONF_DIR"]  # its class path would be all that there is
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(PROGRAMS), str(BIGDL)])
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def bench(*arguments: str, folder: Path) -> list[dict[str, Any]]:
    output = folder / "rows.json"
    run(PROGRAMS / "benchmarks", "bigdl", "--quick", f"--json={output}", *arguments, folder=folder)
    found: list[dict[str, Any]] = json.loads(output.read_text())["rows"]
    return found


def test_blocks_of_several_mib_travel_and_the_tasks_end_without_a_fault(tmp_path: Path) -> None:
    run(Path(__file__).with_name("bigdl_large.py"), str(tmp_path), folder=tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["buckets"] == 1
    assert found["block"] >= 1 << 20
    assert found["gone"] > 1e-3
    assert found["apart"] < 1e-3 * found["gone"]


@pytest.mark.slow
def test_lenet_has_the_weights_that_bigdl_gives_it(tmp_path: Path) -> None:
    rows = bench("--networks=lenet", "--systems=bigdl,layerwise", folder=tmp_path)
    assert [(row["algorithm"], row["case"], row["world"]) for row in rows] == [
        ("bigdl", "lenet", 2),
        ("layerwise", "lenet", 2),
    ]
    for row in rows:
        assert row["verified"]
        assert row["bytes"] == 4 * 22_278
        assert row["compute"] == "real"


@pytest.mark.slow
def test_layers_that_only_wait_say_what_overlaps(tmp_path: Path) -> None:
    rows = bench("--networks=lenet5", "--systems=bigdl,ibatch", "--executors=1,2", folder=tmp_path)
    assert [(row["algorithm"], row["world"]) for row in rows] == [
        ("bigdl", 1),
        ("ibatch", 1),
        ("bigdl", 2),
        ("ibatch", 2),
    ]
    for row in rows:
        assert row["verified"]
        assert row["compute"] == "emulated"
        assert row["theory_seconds"] > 0
    alone = rows[1]["overlap"]
    assert alone.keys() == {"overlapped", "communication_only", "computation_only"}
    assert alone["communication_only"] == alone["overlapped"] == 0
    assert rows[0]["overlap"] == {}


@pytest.mark.slow
def test_the_demo_learns_the_digits(tmp_path: Path) -> None:
    run(PROGRAMS / "train_bigdl.py", "--executors=2", "--epochs=3", f"--output={tmp_path / 'demo'}", folder=tmp_path)
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert summary["executors"] == 2
    assert summary["iterations"] == 3 * -(-(1797 - 360) // 64)
    assert summary["accuracy"] > 0.8
    assert summary["phases"]["forward"] > 0
    assert sum(summary["phases"].values()) < summary["seconds_per_iteration"]
    assert summary["bytes"]["pull"] > 0


@pytest.mark.slow
def test_after_an_executor_was_killed_training_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    program = Path(__file__).with_name("bigdl_killed.py")
    run(program, str(tmp_path), folder=tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    first, last = found["iterations"]
    assert found["killed"] == 1
    assert first > 1
    assert first % 20 == 0
    assert last == 300
    assert found["checkpoints"] == 15


@pytest.mark.slow
def test_an_estimator_fits_a_model_to_a_data_frame(tmp_path: Path) -> None:
    program = Path(__file__).with_name("bigdl_fitted.py")
    run(program, str(tmp_path), folder=tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["accuracy"] > 0.9
    assert found["loaded"] == found["accuracy"]
    assert found["said"] == "ModelError: there is no column target: there are features, label"
    assert found["doubles"] == "ModelError: the model has parameters of type double: only float is trained here"
    for name, size in (("batchSize", 63), ("batch_size", 31)):
        limit = "must be a multiple of 2, the executors (2) times the cores (1) of BigDL's engine"
        assert found[name] == f"ModelError: {name}={size}: {limit}"
    assert found["damaged"].startswith("PersistenceError: ")
    assert "model: the saved BigDLModel cannot be read: " in found["damaged"]
