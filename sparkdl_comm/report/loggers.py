"""Where a run's numbers go besides the model: TensorBoard and MLflow, both extras, or what users write themselves.

All of it happens on the driver, from what rank 0 tells and the ranks report.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from sparkdl_comm.errors import ConfError

#: Seconds that the loggers have, when a run is over, for what they have not written yet.
FLUSH_SECONDS = 60.0
#: Messages that may wait for the loggers; more are dropped.
_MAX_WAITING = 1000

_log = logging.getLogger(__name__)


class LoggedRun(ABC):
    """One run, as a logger keeps it. Called from one thread."""

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """``values`` by name, such as ``train/loss``, after ``step`` optimizer steps."""

    @abstractmethod
    def close(self, failed: bool) -> None:
        """The run is over."""


class RunLogger(ABC):
    """What the estimator's ``loggers`` are. One may serve several runs at the same time."""

    @abstractmethod
    def start(self, name: str, params: Mapping[str, str]) -> LoggedRun:
        """Begin a run called ``name``. What this raises ends ``fit`` before any executor is touched."""


class TensorBoardLogger(RunLogger):
    """Writes each run into a directory of its own below ``log_dir``, for ``tensorboard --logdir log_dir``.

    :raises ConfError: the package tensorboard is missing.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.log_dir = os.fspath(log_dir)
        _require("tensorboard", "tensorboard")

    def start(self, name: str, params: Mapping[str, str]) -> LoggedRun:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(os.path.join(self.log_dir, f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"))
        writer.add_text("params", "\n".join(f"    {key}: {value}" for key, value in params.items()))
        return _TensorBoardRun(writer)


class _TensorBoardRun(LoggedRun):
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, failed: bool) -> None:
        self._writer.close()


class MLflowLogger(RunLogger):
    """Makes an MLflow run of each run.

    :param tracking_uri: of MLflow's server or store; None: MLflow's own default.
    :param experiment: made if it is not there.
    :param run_name: None: the estimator's uid.
    :raises ConfError: the package mlflow (or mlflow-skinny) is missing.
    """

    def __init__(
        self, tracking_uri: str | None = None, experiment: str = "Default", run_name: str | None = None
    ) -> None:
        self.tracking_uri, self.experiment, self.run_name = tracking_uri, experiment, run_name
        _require("mlflow", "mlflow")

    def start(self, name: str, params: Mapping[str, str]) -> LoggedRun:
        from mlflow import MlflowClient

        client = MlflowClient(self.tracking_uri)
        known = client.get_experiment_by_name(self.experiment)
        experiment = client.create_experiment(self.experiment) if known is None else known.experiment_id
        run = client.create_run(experiment, run_name=self.run_name or name)
        for key, value in params.items():
            client.log_param(run.info.run_id, key, value)
        return _MLflowRun(client, run.info.run_id)


class _MLflowRun(LoggedRun):
    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    def log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run_id, [Metric(name, value, now, step) for name, value in values.items()])

    def close(self, failed: bool) -> None:
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")


class RunLog:
    """Feeds loggers, as long as the context lasts, from a thread of its own: a slow one holds up nobody.

    A logger that raises is left out from then on, with a warning: a trained model must not be lost by it.
    """

    def __init__(self, loggers: Sequence[RunLogger], name: str, params: Mapping[str, str]) -> None:
        self._runs: list[LoggedRun] = []
        self._tasks: queue.Queue[Callable[[LoggedRun], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="sparkdl-loggers", daemon=True)
        try:
            for logger in loggers:
                self._runs.append(logger.start(name, params))
        except BaseException:
            for run in self._runs:
                run.close(failed=True)
            raise

    @classmethod
    def of(cls, estimator: Any) -> RunLog:
        """The run that ``fit`` begins: called as the estimator's uid, with its Params and components.

        :raises ConfError: ``loggers`` are none.
        """
        strangers = [logger for logger in estimator.loggers or () if not isinstance(logger, RunLogger)]
        if strangers:
            raise ConfError(
                f"loggers: {strangers[0]!r:.80} is none; give TensorBoardLogger, MLflowLogger or a RunLogger"
            )
        given = ("model", "loss", "optimizer", "lr_scheduler")
        components = {name: describe(getattr(estimator, name)) for name in given}
        params = {param.name: value for param, value in estimator.extractParamMap().items()}
        shown = {name: str(value) for name, value in {**components, **params}.items() if value is not None}
        return cls(estimator.loggers or (), estimator.uid, shown)

    def progress(self, progress: Mapping[str, Any]) -> None:
        """A message of rank 0, see :class:`~sparkdl_comm.report.progress.ProgressBar`; dropped if loggers lag behind."""
        values = {"train/samples_per_second": progress["samples_per_second"]}
        if progress.get("loss") is not None:
            values["train/loss"] = progress["loss"]
        if self._tasks.qsize() < _MAX_WAITING:
            self._log(values, progress["epoch"] * progress["steps"] + progress["step"])

    def history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """The epochs, when the run is over."""
        for row in rows:
            numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
            self._log({f"epoch/{name}": value for name, value in numbers.items() if name != "step"}, row["step"])

    def __enter__(self) -> RunLog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tasks.put(lambda run: run.close(failed=error is not None))
        self._tasks.put(None)
        self._thread.join(FLUSH_SECONDS)
        if self._thread.is_alive():
            _log.warning("loggers had not written all after %g s", FLUSH_SECONDS)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self._tasks.put(lambda run: run.log(values, step))

    def _work(self) -> None:
        runs = list(self._runs)
        while (task := self._tasks.get()) is not None:
            for run in list(runs):
                try:
                    task(run)
                except Exception:  # noqa: BLE001 - a logger may be anybody's
                    _log.exception("%s failed, and gets no more of this run", type(run).__name__)
                    runs.remove(run)


def describe(component: Any) -> str | None:
    """The name of a class, function, or ``functools.partial`` of one; the class of an instance."""
    function = getattr(component, "func", component)
    if function is None or isinstance(function, str):
        return function
    return getattr(function, "__qualname__", type(function).__qualname__)


def _require(package: str, extra: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise ConfError(f"the package {package} is missing: pip install 'sparkdl_comm[{extra}]'") from error
