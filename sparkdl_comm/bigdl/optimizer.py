"""``IBatchOptimizer`` for programs that use BigDL's Python API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from bigdl.dllib.optim.optimizer import SGD, Optimizer
from bigdl.dllib.utils.common import callBigDlFunc
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import RDD
from pyspark.errors.exceptions.captured import CapturedException

from sparkdl_comm.errors import GangError, ModelError, SparkdlCommError
from sparkdl_comm.job.summary import Summary

_ERROR_CLASSES: dict[str, type[SparkdlCommError]] = {
    "sparkdl.comm.bigdl.UnsupportedTrainingException": ModelError,
    "sparkdl.comm.bigdl.TrainingFailedException": GangError,
}


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Raise the adapter's exceptions as ModelError (unsupported training) or GangError (failed training)."""
    try:
        yield
    except (CapturedException, Py4JJavaError) as exc:
        failure: Any = exc._origin if isinstance(exc, CapturedException) else exc.java_exception
        kind = _ERROR_CLASSES.get(failure.getClass().getName()) if failure is not None else None
        if kind is None:
            raise
        raise kind(failure.getMessage()) from exc


def check_floats(model: Any) -> None:
    """Raise ModelError if a BigDL ``Layer`` has parameters of type double."""
    if model.bigdl_type != "float":
        raise ModelError(f"the model has parameters of type {model.bigdl_type}: only float is trained here")


class IBatchOptimizer(Optimizer):  # type: ignore[misc]
    """Optimizer that replaces BigDL's ``DistriOptimizer`` and has the same result: see ``IBatchOptimizer`` in ``scala/bigdl``.

    Call :func:`~sparkdl_comm.bigdl.installation.start_engine` first. Spark settings such as ``spark.sparkdl.comm.ps.batching``
    control how layers travel.

    :param model: a BigDL ``Layer``.
    :param training_rdd: an RDD of ``Sample``.
    :param criterion: BigDL's loss, such as ``ClassNLLCriterion()``.
    :param end_trigger: BigDL's end of the training, such as ``MaxEpoch(10)``.
    :param batch_size: rows over all executors, a multiple of executors times cores.
    :param optim_method: one method, or a mapping from the names of submodules to methods; default ``SGD()``.
    :raises ModelError: the model has parameters of type double, or the batch cannot be divided equally.
    """

    def __init__(
        self,
        model: Any,
        training_rdd: RDD[Any],
        criterion: Any,
        end_trigger: Any,
        batch_size: int,
        optim_method: Any = None,
    ) -> None:
        check_floats(model)
        methods = optim_method if isinstance(optim_method, Mapping) else {model.name(): optim_method or SGD()}
        self.bigdl_type = "float"
        with translate_errors():
            self.value = callBigDlFunc(
                "float",
                "createIBatchOptimizer",
                model.value,
                training_rdd,
                criterion,
                dict(methods),
                end_trigger,
                batch_size,
            )

    def optimize(self) -> Any:
        """Train the given model in place, and return it.

        :raises ModelError: the training is not supported; the message says what to change.
        :raises GangError: a rank raised an exception, ranks were lost more often than ``spark.sparkdl.comm.maxRestarts``
            allows, or executors were killed for their memory twice.
        """
        with translate_errors():
            return super().optimize()

    @classmethod
    def from_jvm(cls, value: Any) -> IBatchOptimizer:
        """Return the Python object for ``value``, an ``IBatchOptimizer`` in the JVM."""
        optimizer = cls.__new__(cls)
        optimizer.bigdl_type, optimizer.value = "float", value
        return optimizer

    def set_conf(self, key: str, value: str) -> IBatchOptimizer:
        """Set a Spark setting of this package, such as ``spark.sparkdl.comm.ps.batching``, for this optimizer only."""
        self.value.setConf(key, value)
        return self

    @property
    def summary(self) -> Summary:
        """Summary of the last training, like :attr:`sparkdl_comm.TorchModel.summary`.

        ``strategy``, ``world``, ``iterations``, ``seconds_per_iteration`` (of the slowest rank), ``iterations_per_second``,
        ``phases`` (seconds per iteration, mean over ranks), ``bytes`` (``pull`` and ``push``, all ranks, whole training),
        ``batching`` (buckets of layers), and ``overlap``. The last one has seconds per iteration in which a rank computed and
        received at the same time (``overlapped``), only received (``communication_only``), or only computed
        (``computation_only``).
        """
        return Summary(json.loads(self.value.summary()))

    @property
    def losses(self) -> list[float]:
        """Mean loss of each iteration of the last training; after a restart, of the last attempt."""
        found: list[float] = callBigDlFunc("float", "lossesOfIBatchOptimizer", self.value)
        return found
