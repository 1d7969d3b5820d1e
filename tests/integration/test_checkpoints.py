"""Fits that go on from a checkpoint, and slots that others hold, on three executors."""

import functools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from lab.settings import applied
from pyspark.sql import SparkSession

from sparkdl_comm.errors import ConfError, PluginError, SlotsError
from tests.integration.nets import Random, Small
from tests.integration.test_training import fit as fit_once
from tests.integration.test_training import frame, same_bits
from tests.slow import slow

SETTINGS: dict[str, Any] = {
    "model": Random,
    "optimizer": functools.partial(torch.optim.Adam, lr=0.01),
    "lr_scheduler": functools.partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5),
    "batch": 30,
}


def rows(model: Any) -> list[dict[str, Any]]:
    """The history, but for the time."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in model.history]


def complete(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("strategy", ["ps", slow("gloo")])
def test_the_same_bits_as_without_an_interruption(spark: SparkSession, tmp_path: Path, strategy: str) -> None:
    """The checkpoint is of step 4, in the middle of the second of four epochs; the run that wrote it ended with step 6."""
    data, settings = frame(spark), {**SETTINGS, "strategy": strategy}
    whole = fit_once(data, epochs=4, **settings)
    there: dict[str, Any] = {"checkpointDir": str(tmp_path), "checkpointInterval": 4}
    fit_once(data, epochs=2, **there, **settings)
    assert complete(tmp_path) == ["step-00000004"]
    again = fit_once(data, epochs=4, resume=True, **there, **settings)
    assert (again.summary["resumed_at"], again.summary["iterations"], again.summary["restarts"]) == (4, 12, 0)
    assert same_bits(again, whole)
    assert rows(again) == rows(whole)
    assert complete(tmp_path) == ["step-00000008", "step-00000012"]
    done = fit_once(data, epochs=4, resume=True, **there, **settings)
    assert (done.summary["resumed_at"], done.summary["iterations"]) == (12, 12), "no step was left"
    assert same_bits(done, whole)
    assert (rows(done), done.output_shape) == (rows(whole), [10])
    assert done.transform(data).columns == whole.transform(data).columns


@pytest.mark.slow
def test_any_hadoop_path(spark: SparkSession, hadoop_path: tuple[str, Path]) -> None:
    """Two ranks, a checkpoint after the first step that ends a millisecond after the last one."""
    remote, disk = hadoop_path
    data, there = frame(spark), {"checkpointDir": remote, "checkpointSeconds": 0.001, "checkpointKeep": 3}
    whole = fit_once(data, epochs=2, num_workers=2, **SETTINGS)
    fit_once(data, epochs=1, num_workers=2, **there, **SETTINGS)
    assert complete(disk)[-1] == "step-00000003"
    again = fit_once(data, epochs=2, num_workers=2, resume=True, **there, **SETTINGS)
    assert again.summary["resumed_at"] == 3
    assert same_bits(again, whole)
    assert rows(again) == rows(whole)
    newest = complete(disk)
    assert len(newest) <= 3
    manifest = json.loads((disk / newest[-1] / "manifest.json").read_text())
    assert manifest["run"]["world"] == 2


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"checkpointDir": "/x"}, ConfError, "set checkpointInterval"),
        ({"resume": True}, ConfError, "need checkpointDir"),
        ({"checkpointInterval": 3}, ConfError, "need checkpointDir"),
        ({"checkpointDir": "/x", "checkpointSeconds": 0.0}, ConfError, "checkpointSeconds=0.0: must be more than 0"),
        ({"checkpointDir": "/x", "checkpointInterval": 1, "checkpointKeep": 0}, ConfError, "checkpointKeep=0"),
        (
            {"checkpointDir": "none://x/y", "checkpointInterval": 1},
            ConfError,
            "checkpointDir=none://x/y: .*No FileSystem",
        ),
    ],
)
def test_refused(spark: SparkSession, settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fit_once(frame(spark), **settings)


@pytest.mark.parametrize("local", [False, True])
def test_what_the_driver_can_know_is_told_before_any_executor_is_touched(
    spark: SparkSession, hadoop_path: tuple[str, Path], local: bool
) -> None:
    remote, disk = hadoop_path
    remote = str(disk) if local else remote
    settings = {"checkpointInterval": 1, "num_workers": 300}  # with which the ranks could not start
    (disk / "used" / "step-00000004").mkdir(parents=True)
    (disk / "file").touch()
    with pytest.raises(ConfError, match=r"used already has checkpoints, the newest of step 4. Set resume=True"):
        fit_once(frame(spark), checkpointDir=f"{remote}/used", **settings)
    with pytest.raises(ConfError, match=r"checkpointDir=.*/file/below: cannot (look at|write) ") as error:
        fit_once(frame(spark), checkpointDir=f"{remote}/file/below", **settings)
    assert len(str(error.value)) < 500
    with pytest.raises(SlotsError):
        fit_once(frame(spark), checkpointDir=f"{remote}/new", **settings)
    assert not list((disk / "new").iterdir())


def test_a_hadoop_path_needs_the_plugin(
    spark: SparkSession, hadoop_path: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkdl_comm.job.session.application_conf", lambda spark: {})
    with pytest.raises(PluginError, match="not loaded"):
        fit_once(frame(spark), strategy="gloo", checkpointDir=hadoop_path[0], checkpointInterval=1)


def sit(batches: Iterator[pa.RecordBatch], until: Path) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    begin = time.monotonic()
    while not until.exists() and time.monotonic() < begin + 60:
        time.sleep(0.1)
    yield pa.RecordBatch.from_pydict({"x": [1]})


@pytest.mark.slow
def test_slots_that_another_job_holds(spark: SparkSession, tmp_path: Path) -> None:
    """Its turn is waited for. Then that is said, with the numbers, and nothing is left behind that would run later."""
    enough = tmp_path / "enough"
    sitting = functools.partial(sit, until=enough)
    other = threading.Thread(target=spark.range(0, 2, 1, 2).mapInArrow(sitting, "x long").collect)
    data = frame(spark).cache()
    data.count()
    other.start()
    tracker = spark.sparkContext.statusTracker()
    while not any(tracker.getStageInfo(stage).numActiveTasks == 2 for stage in tracker.getActiveStageIds()):
        time.sleep(0.1)
    told = r"3 ranks waited 3 s \(spark\.sparkdl\.comm\.turnTimeout\) .*the cluster has 3, and 2 tasks of other jobs"
    try:
        with applied(spark, {"slotTimeout": "1s", "turnTimeout": "3s"}), pytest.raises(SlotsError, match=told):
            fit_once(data, epochs=1)
        assert other.is_alive(), "the other job is over: it held nothing"
    finally:
        enough.touch()
        other.join()
        data.unpersist()
    assert not tracker.getActiveStageIds()
    assert fit_once(frame(spark), model=Small, epochs=1).summary["iterations"] == 1
