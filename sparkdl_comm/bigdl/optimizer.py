"""``IBatchOptimizer`` for programs in BigDL's Python API."""

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

_KINDS: dict[str, type[SparkdlCommError]] = {
    "sparkdl.comm.bigdl.UnsupportedTrainingException": ModelError,
    "sparkdl.comm.bigdl.TrainingFailedException": GangError,
}


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """Raises what the adapter says of a training as ModelError, if it cannot be, or GangError, if it failed."""
    try:
        yield
    except (CapturedException, Py4JJavaError) as exc:
        failure: Any = exc._origin if isinstance(exc, CapturedException) else exc.java_exception
        kind = _KINDS.get(failure.getClass().getName()) if failure is not None else None
        if kind is None:
            raise
        raise kind(failure.getMessage()) from exc


def check_floats(model: Any) -> None:
    """:raises ModelError: a BigDL ``Layer`` has parameters of doubles."""
    if model.bigdl_type != "float":
        raise ModelError(f"the model has parameters of type {model.bigdl_type}: only float is trained here")


class IBatchOptimizer(Optimizer):
    """Used like BigDL's ``DistriOptimizer``, with the same result: see ``IBatchOptimizer`` in ``scala/bigdl``.

    :func:`~sparkdl_comm.bigdl.engine.start_engine` comes first. Keys of the conf, as ``spark.sparkdl.comm.ps.batching``, say
    how layers travel.
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
        """``model``: a BigDL ``Layer``; ``training_rdd``: of ``Sample``; ``batch_size``: rows in all executors, a multiple of
        executors times cores; ``optim_method``: one, or one for each part of the model by its name; default: ``SGD()``.

        :raises ModelError: the model has parameters of doubles, or the batch cannot be cut into equal parts.
        """
        check_floats(model)
        methods = optim_method if isinstance(optim_method, Mapping) else {model.name(): optim_method or SGD()}
        self.bigdl_type = "float"
        with typed_errors():
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
        """Trains; returns the model that was given, with its new parameters.

        :raises ModelError: this cannot be trained so; the message says what to change.
        :raises GangError: a rank failed more often than ``spark.sparkdl.comm.maxRestarts`` allows.
        """
        with typed_errors():
            return super().optimize()

    @classmethod
    def of(cls, value: Any) -> IBatchOptimizer:
        """``value``: one that is in the JVM."""
        made = cls.__new__(cls)
        made.bigdl_type, made.value = "float", value
        return made

    def set_conf(self, key: str, value: str) -> IBatchOptimizer:
        """Sets a key of this package's, such as ``spark.sparkdl.comm.ps.batching``, for this optimizer alone."""
        self.value.setConf(key, value)
        return self

    @property
    def summary(self) -> Summary:
        """The last training in numbers, as :attr:`sparkdl_comm.TorchModel.summary` has them: ``strategy``, ``world``,
        ``iterations``, ``seconds_per_iteration`` (of the slowest rank), ``iterations_per_second``, ``phases`` (seconds per
        iteration, mean over ranks), ``bytes`` (``pull`` and ``push``, all ranks, whole training), ``batching``: how layers
        travelled. And ``overlap``, seconds per iteration: for how long a rank computed while something came to it
        (``overlapped``), or did one of the two alone (``communication_only``, ``computation_only``)."""
        return Summary(json.loads(self.value.summary()))

    @property
    def losses(self) -> list[float]:
        """The mean loss of each iteration of the last training: after a restart, of the last attempt."""
        found: list[float] = callBigDlFunc("float", "lossesOfIBatchOptimizer", self.value)
        return found
