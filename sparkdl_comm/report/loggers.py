"""Loggers for a run's numbers: TensorBoard and MLflow (both extras), or loggers that users write.

They run on the driver, on the progress of rank 0 and the reports of all ranks.
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

#: Seconds for the loggers to write the remaining values after a run.
FLUSH_SECONDS = 60.0
#: Maximum number of queued messages; more are dropped.
_MAX_WAITING = 1000

_log = logging.getLogger(__name__)


class LoggedRun(ABC):
    """Run in a logger's store. Called from one thread."""

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write ``values`` by name, such as ``train/loss``, after ``step`` optimizer steps."""

    @abstractmethod
    def close(self, failed: bool) -> None:
        """End the run."""


class RunLogger(ABC):
    """Base class of the estimator's ``loggers``. One logger may serve several runs at the same time."""

    @abstractmethod
    def start(self, name: str, params: Mapping[str, str]) -> LoggedRun:
        """Begin a run called ``name``. An exception here ends ``fit`` before any executor starts."""


class TensorBoardLogger(RunLogger):
    """Logger that writes each run to a subdirectory of ``log_dir``, for ``tensorboard --logdir log_dir``.

    :raises ConfError: the package tensorboard is missing.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.log_dir = os.fspath(log_dir)
        _require_package("tensorboard", "tensorboard")

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
    """Logger that creates an MLflow run for each run.

    :param tracking_uri: URI of MLflow's server or store; None: MLflow's default.
    :param experiment: name of the experiment, which is created if it is missing.
    :param run_name: None: the estimator's uid.
    :raises ConfError: the package mlflow (or mlflow-skinny) is missing.
    """

    def __init__(
        self, tracking_uri: str | None = None, experiment: str = "Default", run_name: str | None = None
    ) -> None:
        self.tracking_uri, self.experiment, self.run_name = tracking_uri, experiment, run_name
        _require_package("mlflow", "mlflow")

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
    """Context manager that feeds the loggers of a run from its own thread, so a slow logger delays nobody.

    A logger that raises gets no more values, and a warning is logged: its error must not lose a trained model.
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
        """Return the log of the run that ``fit`` begins, named by the estimator's uid, with its Params and components.

        :raises ConfError: an entry of ``loggers`` is not a RunLogger.
        """
        invalid = [logger for logger in estimator.loggers or () if not isinstance(logger, RunLogger)]
        if invalid:
            raise ConfError(
                f"loggers: {invalid[0]!r:.80} is not a logger; give TensorBoardLogger, MLflowLogger or a RunLogger"
            )
        names = ("model", "loss", "optimizer", "lr_scheduler")
        components = {name: component_name(getattr(estimator, name)) for name in names}
        params = {param.name: value for param, value in estimator.extractParamMap().items()}
        run_params = {name: str(value) for name, value in {**components, **params}.items() if value is not None}
        return cls(estimator.loggers or (), estimator.uid, run_params)

    def log_progress(self, progress: Mapping[str, Any]) -> None:
        """Log a progress message of rank 0, see :class:`~sparkdl_comm.report.progress.ProgressBar`. Drop it if the
        queue is full."""
        values = {"train/samples_per_second": progress["samples_per_second"]}
        if progress.get("loss") is not None:
            values["train/loss"] = progress["loss"]
        if self._tasks.qsize() < _MAX_WAITING:
            self._log(values, progress["epoch"] * progress["steps"] + progress["step"])

    def log_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log the epochs at the end of the run."""
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
            _log.warning("loggers had not written all values after %g s", FLUSH_SECONDS)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self._tasks.put(lambda run: run.log(values, step))

    def _work(self) -> None:
        runs = list(self._runs)
        while (task := self._tasks.get()) is not None:
            for run in list(runs):
                try:
                    task(run)
                except Exception:  # noqa: BLE001 - loggers are user code
                    _log.exception("%s failed and gets no more values of this run", type(run).__name__)
                    runs.remove(run)


def component_name(component: Any) -> str | None:
    """Return the name of a class, function, or ``functools.partial`` of one; for an instance, the name of its class."""
    function = getattr(component, "func", component)
    if function is None or isinstance(function, str):
        return function
    return getattr(function, "__qualname__", type(function).__qualname__)


def _require_package(package: str, extra: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise ConfError(f"the package {package} is missing: pip install 'sparkdl_comm[{extra}]'") from error
