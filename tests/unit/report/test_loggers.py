"""Where a run's numbers go: TensorBoard and MLflow themselves read them back."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparkdl_comm.errors import ConfError
from sparkdl_comm.report import loggers
from sparkdl_comm.report.loggers import LoggedRun, MLflowLogger, RunLog, RunLogger, TensorBoardLogger

HISTORY = [
    {"epoch": 1, "step": 10, "loss": 0.5, "val_loss": 0.75, "lr": 0.1, "seconds": 2.0},
    {"epoch": 2, "step": 20, "loss": 0.25, "val_loss": 0.5, "lr": 0.1, "seconds": 1.0},
]


def progress(epoch: int, step: int, loss: float | None) -> dict[str, Any]:
    return {"epoch": epoch, "epochs": 2, "step": step, "steps": 10, "loss": loss, "samples_per_second": 128.0}


def a_run(*given: RunLogger) -> None:
    with RunLog(given, "Estimator_1", {"batchSize": "32", "loss": "CrossEntropyLoss"}) as log:
        log.log_progress(progress(0, 4, 2.0))
        log.log_progress(progress(1, 5, None))
        log.log_history(HISTORY)


def test_tensorboard(tmp_path: Any) -> None:
    a_run(TensorBoardLogger(tmp_path))
    (run,) = tmp_path.iterdir()
    assert run.name.endswith("-Estimator_1")
    events = EventAccumulator(str(run)).Reload()

    def scalars(tag: str) -> list[tuple[int, float]]:
        return [(event.step, event.value) for event in events.Scalars(tag)]

    assert scalars("train/loss") == [(4, 2.0)]
    assert scalars("train/samples_per_second") == [(4, 128.0), (15, 128.0)]
    assert scalars("epoch/val_loss") == [(10, 0.75), (20, 0.5)]
    assert scalars("epoch/seconds") == [(10, 2.0), (20, 1.0)]
    (params,) = events.Tensors("params/text_summary")
    assert b"batchSize: 32" in params.tensor_proto.string_val[0]


def test_mlflow(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # databases need more than mlflow-skinny
    uri = (tmp_path / "runs").as_uri()
    a_run(MLflowLogger(uri, experiment="digits"))
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert run.info.run_name == "Estimator_1"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"batchSize": "32", "loss": "CrossEntropyLoss"}
    history = client.get_metric_history(run.info.run_id, "epoch/loss")
    assert [(metric.step, metric.value) for metric in history] == [(10, 0.5), (20, 0.25)]
    assert run.data.metrics["train/loss"] == 2.0
    with pytest.raises(LookupError), RunLog([MLflowLogger(uri, run_name="mine")], "x", {}):
        raise LookupError("the run fails")
    (failed,) = client.search_runs(["0"])
    assert (failed.info.run_name, failed.info.status) == ("mine", "FAILED")


@pytest.mark.parametrize(
    ("package", "make"), [("tensorboard", lambda: TensorBoardLogger("x")), ("mlflow", lambda: MLflowLogger())]
)
def test_a_missing_package(package: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfError, match=rf"{package} is missing: pip install 'sparkdl_comm\[{package}\]'"):
        make()


class Recorder(RunLogger, LoggedRun):
    def __init__(self, error: Exception | None = None, wait: threading.Event | None = None) -> None:
        self.error, self.wait = error, wait
        self.seen: list[Any] = []

    def start(self, name: str, params: Mapping[str, str]) -> LoggedRun:
        if name == "refused" and self.error is not None:
            raise self.error
        return self

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.seen.append(step)
        if self.wait is not None:
            self.wait.wait(30)
        if self.error is not None:
            raise self.error

    def close(self, failed: bool) -> None:
        self.seen.append(failed)


def test_a_logger_that_fails_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    broken, good = Recorder(OSError("disk full")), Recorder()
    a_run(broken, good)
    assert broken.seen == [4]
    assert good.seen == [4, 15, 10, 20, False]
    assert "disk full" in caplog.text


def test_one_that_cannot_start_ends_the_fit_and_the_others() -> None:
    good = Recorder()
    with pytest.raises(OSError, match="no server"):
        RunLog([good, Recorder(OSError("no server"))], "refused", {})
    assert good.seen == [True]


def test_a_slow_logger_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(loggers, "FLUSH_SECONDS", 0.2)
    go_on = threading.Event()
    slow = Recorder(wait=go_on)
    begin = time.monotonic()
    with RunLog([slow], "x", {}) as log:
        for step in range(5000):
            log.log_progress(progress(0, step, 1.0))
        assert log._tasks.qsize() <= loggers._MAX_WAITING
    assert time.monotonic() - begin < 5
    assert "had not written all" in caplog.text
    go_on.set()
