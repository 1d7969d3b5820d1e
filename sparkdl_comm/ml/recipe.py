"""A user's training settings: components that are not JSON, and their checks together with the Params."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from sparkdl_comm.data.fields import Collate, Decode
from sparkdl_comm.errors import ConfError, ModelError, PersistenceError
from sparkdl_comm.job.session import is_classic, shared_directory
from sparkdl_comm.ml import components
from sparkdl_comm.ml.params import TorchParams
from sparkdl_comm.optim.optimizer import VALIDATION_ADVICE, Optimization, is_plateau_scheduler
from sparkdl_comm.report.loggers import RunLogger
from sparkdl_comm.storage.session import DriverStorage
from sparkdl_comm.train.checkpoint.checkpoint_directory import CheckpointDirectory, check_unused
from sparkdl_comm.train.loop.callbacks import Callback
from sparkdl_comm.train.spec import Augment, Checkpoints, Observation, Stopping

#: Columns of the history. Metrics cannot have these names.
_HISTORY_COLUMNS = ("epoch", "step", "loss", "val_loss", "lr", "seconds")


class TrainingRecipe(TorchParams):
    """Components and Params that decide how to train, with getters and setters.

    See :class:`~sparkdl_comm.ml.estimator.TorchEstimator` for their meaning.
    """

    model: Any = None
    loss: Any = None
    optimizer: Any = None
    param_groups: Any = None
    lr_scheduler: Any = None
    metrics: Any = None
    callbacks: Any = None
    decode: Any = None
    collate_fn: Any = None
    augment: Any = None
    loggers: Any = None

    def check_decode(self) -> Decode | None:
        """Check ``decode`` and return it.

        :raises ModelError: it cannot be called.
        """
        decode: Decode | None = self.decode
        if decode is not None and not callable(decode):
            raise ModelError(f"decode is {components.describe(decode)}; give a function, bytes -> array or tensor")
        return decode

    def check_collate_fn(self) -> Collate | None:
        """Check ``collate_fn`` and return it.

        :raises ModelError: it cannot be called.
        """
        collate_fn: Collate | None = self.collate_fn
        if collate_fn is not None and not callable(collate_fn):
            raise ModelError(
                f"collate_fn is {components.describe(collate_fn)}; give a function, list of tensors -> the model's"
                " argument, e.g. functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)"
            )
        return collate_fn

    def check_augment(self) -> Augment | None:
        """Check ``augment`` and return it.

        :raises ModelError: it cannot be called.
        """
        augment: Augment | None = self.augment
        if augment is not None and not callable(augment):
            raise ModelError(
                f"augment is {components.describe(augment)}; give a function, tensor [rows, …] -> tensor [rows, …]"
            )
        return augment

    def check_optimization(self) -> Optimization:
        """Check the settings of the optimization and return them.

        :raises ModelError: a component cannot be used.
        :raises ConfError: the optimizer does not accept ``learningRate``.
        """
        for name in ("param_groups", "lr_scheduler"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                signature = "module -> list of dicts" if name == "param_groups" else "optimizer -> scheduler"
                raise ModelError(f"{name} is {components.describe(given)}; give a function, {signature}")
        return Optimization(
            optimizer=components.make_optimizer_factory(self.optimizer, self.getLearningRate()),
            param_groups=self.param_groups,
            lr_scheduler=self.lr_scheduler,
            scheduler_interval=self.getLrSchedulerInterval(),
            accumulation_steps=self.getAccumulationSteps(),
            max_grad_norm=self.getMaxGradNorm(),
            precision=self.getPrecision(),
        )

    def check_observation(self) -> Observation:
        """Check metrics, callbacks and early stopping, and return them.

        :raises ModelError: a component cannot be used.
        :raises ConfError: the monitored value is unknown, or a setting needs validation rows and there are none.
        """
        metrics = {} if self.metrics is None else self.metrics
        if not isinstance(metrics, Mapping) or not all(callable(metric) for metric in metrics.values()):
            raise ModelError(
                "metrics: give a dict of name -> torchmetrics.Metric, or callable (output, target) -> scalar"
            )
        reserved = sorted(set(metrics) & set(_HISTORY_COLUMNS))
        if reserved:
            raise ModelError(f"metrics: {', '.join(reserved)} is a column of the history. Choose another name")
        callbacks = () if self.callbacks is None else tuple(self.callbacks)
        invalid = [components.describe(callback) for callback in callbacks if not isinstance(callback, Callback)]
        if invalid:
            raise ModelError(f"callbacks: {invalid[0]}; give instances of subclasses of sparkdl_comm.Callback")
        monitor = self.getEarlyStoppingMonitor()
        if monitor not in ("loss", "val_loss", *metrics):
            known = ", ".join(["loss", "val_loss", *metrics])
            raise ConfError(f"earlyStoppingMonitor={monitor!r}: must be one of {known}")
        if self.getValidationIndicatorCol() is None and self.getValidationFraction() is None:
            if metrics:
                raise ConfError(f"metrics {sorted(metrics)} needs validation rows; {VALIDATION_ADVICE}")
            if monitor != "loss" and (
                self.getEarlyStoppingPatience() is not None or is_plateau_scheduler(self.lr_scheduler)
            ):
                raise ConfError(
                    f"earlyStoppingMonitor={monitor!r} needs validation rows; {VALIDATION_ADVICE}, or"
                    " earlyStoppingMonitor='loss'"
                )
        stopping = Stopping(
            patience=self.getEarlyStoppingPatience(),
            monitor=monitor,
            min_delta=self.getEarlyStoppingMinDelta(),
            mode=self.getEarlyStoppingMode(),
            restore=self.getRestoreBestModel(),
        )
        return Observation(dict(metrics), callbacks, stopping)

    def check_checkpoints(self, spark: SparkSession) -> Checkpoints | None:
        """Check the directory for checkpoints as far as the driver can. Return the settings of checkpoints.

        Return None without ``checkpointDir``.

        :raises ConfError: the directory's file system is unknown, or a client of Spark Connect gave no scheme; the directory
            cannot be written; or it has checkpoints and ``resume`` is not set.
        :raises PluginError: the directory needs the plugin, which is not loaded, or was built for another Spark.
        """
        directory = self.getCheckpointDir()
        if directory is None:
            return None
        directory = shared_directory(spark, directory, "checkpointDir")
        _check_checkpoint_directory(spark, directory, self.getResume())
        return Checkpoints(
            directory=directory,
            every_steps=self.getCheckpointInterval(),
            every_seconds=self.getCheckpointSeconds(),
            keep=self.getCheckpointKeep(),
            resume=self.getResume(),
            run=secrets.token_hex(8),
        )

    def getOptimizer(self) -> Any:
        return self.optimizer

    def getParamGroups(self) -> Any:
        return self.param_groups

    def getLrScheduler(self) -> Any:
        return self.lr_scheduler

    def getMetrics(self) -> Any:
        return self.metrics

    def getCallbacks(self) -> Any:
        return self.callbacks

    def getDecode(self) -> Any:
        return self.decode

    def getCollateFn(self) -> Any:
        return self.collate_fn

    def setOptimizer(self, value: Any) -> Any:
        self.optimizer = value
        return self

    def setParamGroups(self, value: Callable[..., Any] | None) -> Any:
        self.param_groups = value
        return self

    def setLrScheduler(self, value: Callable[..., Any] | None) -> Any:
        self.lr_scheduler = value
        return self

    def setMetrics(self, value: Mapping[str, Any] | None) -> Any:
        self.metrics = value
        return self

    def setCallbacks(self, value: Sequence[Callback] | None) -> Any:
        self.callbacks = value
        return self

    def setDecode(self, value: Decode | None) -> Any:
        self.decode = value
        return self

    def setCollateFn(self, value: Collate | None) -> Any:
        self.collate_fn = value
        return self

    def getAugment(self) -> Any:
        return self.augment

    def setAugment(self, value: Augment | None) -> Any:
        self.augment = value
        return self

    def getLoggers(self) -> Any:
        return self.loggers

    def setLoggers(self, value: Sequence[RunLogger] | None) -> Any:
        self.loggers = value
        return self


def _check_checkpoint_directory(spark: SparkSession, directory: str, resume: bool) -> None:
    """Check a directory for checkpoints as far as the driver can, before executors are used. Rank 0 checks it again.

    :param directory: a local path, or a URI for Hadoop.
    :raises ConfError: it cannot be written, or it has checkpoints and ``resume`` is not set.
    """
    is_local = directory.startswith("/")
    # The driver of a cluster may not share a mount with its executors.
    if not is_classic(spark) or (is_local and not (spark.sparkContext.master or "").startswith("local")):
        return
    path = f"file://{directory}" if is_local else directory
    checkpoints = CheckpointDirectory(DriverStorage(spark), path, f"driver-{secrets.token_hex(6)}")
    try:
        steps = checkpoints.steps()
        checkpoints.delete(checkpoints.probe(0))
    except PersistenceError as error:
        raise ConfError(f"checkpointDir={directory}: {error.message}") from error
    check_unused(directory, steps, resume)
