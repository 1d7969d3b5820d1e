"""A user's training settings: components that are not JSON, and their checks together with the Params."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from sparkdl_comm.errors import ConfError, ModelError, PersistenceError
from sparkdl_comm.job.session import is_classic, shared_directory
from sparkdl_comm.ml import components
from sparkdl_comm.ml.params import EstimatorParams
from sparkdl_comm.optim.optimizer import VALIDATION_ADVICE, Optimization, is_plateau_scheduler
from sparkdl_comm.storage.session import DriverStorage
from sparkdl_comm.train.callbacks import Callback
from sparkdl_comm.train.checkpoint_directory import CheckpointDirectory, check_unused
from sparkdl_comm.train.spec import Checkpoints, Observation, Stopping

#: Columns of the history. Metrics cannot have these names.
_HISTORY_COLUMNS = ("epoch", "step", "loss", "val_loss", "lr", "seconds")


class TrainingRecipe(EstimatorParams):
    """Components and Params that decide how to train, with their checks.

    See :class:`~sparkdl_comm.ml.estimator.TorchEstimator` for their meaning.
    """

    def check_function(self, name: str, signature: str) -> Any:
        """Check the component ``name``, a function or None, and return it. ``signature``: for the message.

        :raises ModelError: it cannot be called.
        """
        given = getattr(self, name)
        if given is not None and not callable(given):
            raise ModelError(f"{name} is {components.describe(given)}; give a function, {signature}")
        return given

    def check_optimization(self) -> Optimization:
        """Check the settings of the optimization and return them.

        :raises ModelError: a component cannot be used.
        :raises ConfError: the optimizer does not accept ``learningRate``.
        """
        return Optimization(
            param_groups=self.check_function("param_groups", "module -> list of dicts"),
            lr_scheduler=self.check_function("lr_scheduler", "optimizer -> scheduler"),
            optimizer=components.make_optimizer_factory(self.optimizer, self.getLearningRate()),
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

        Return None if ``checkpointDir`` is not set.

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
