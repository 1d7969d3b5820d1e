"""Params of the optimizer step."""

from __future__ import annotations

import math
from typing import Any, TypedDict

from pyspark.ml.param import Param, Params, TypeConverters

from sparkdl_comm.errors import ConfError
from sparkdl_comm.ml.params.base import KeywordParams


class OptimizationKeywords(TypedDict, total=False):
    learningRate: float
    accumulationSteps: int
    maxGradNorm: float
    precision: str
    lrSchedulerInterval: str
    learning_rate: float
    accumulation_steps: int
    max_grad_norm: float
    lr_scheduler_interval: str


class OptimizationParams(KeywordParams):
    """Params ``learningRate``, ``accumulationSteps``, ``maxGradNorm``, ``precision``, ``lrSchedulerInterval``."""

    learningRate: Param[float] = Param(
        Params._dummy(),
        "learningRate",
        "learning rate that replaces the optimizer's lr; groups of param_groups with an lr keep theirs",
        TypeConverters.toFloat,
    )
    accumulationSteps: Param[int] = Param(
        Params._dummy(),
        "accumulationSteps",
        "number of batches per optimizer step, which uses batchSize x accumulationSteps rows",
        TypeConverters.toInt,
    )
    maxGradNorm: Param[float] = Param(
        Params._dummy(),
        "maxGradNorm",
        "maximum L2 norm of the gradient over all parameters; larger gradients are scaled down. Not set: no limit",
        TypeConverters.toFloat,
    )
    precision: Param[str] = Param(
        Params._dummy(),
        "precision",
        "precision of forward and loss with torch.autocast: fp32 (off), bf16 or fp16 (with dynamic loss scaling)",
        TypeConverters.toString,
    )
    lrSchedulerInterval: Param[str] = Param(
        Params._dummy(),
        "lrSchedulerInterval",
        "when lr_scheduler steps: epoch (at the end of each epoch) or step (after each optimizer step). Not set: step for"
        " OneCycleLR, CyclicLR and functions that take total_steps or num_training_steps,"
        " epoch for others",
        TypeConverters.toString,
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            learningRate=None, accumulationSteps=1, maxGradNorm=None, precision="fp32", lrSchedulerInterval=None
        )

    def _check_params(self) -> None:
        super()._check_params()
        self._check_at_least(1, "accumulationSteps")
        self._check_one_of("precision", "fp32", "bf16", "fp16")
        if self.getLrSchedulerInterval() is not None:
            self._check_one_of("lrSchedulerInterval", "epoch", "step")
        for name in ("learningRate", "maxGradNorm"):
            value = self.getOrDefault(name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfError(f"{name}={value}: must be more than 0, and finite")

    def getLearningRate(self) -> float | None:
        """Return the learning rate; None: the optimizer's own."""
        return self.getOrDefault(self.learningRate)

    def getAccumulationSteps(self) -> int:
        return self.getOrDefault(self.accumulationSteps)

    def getMaxGradNorm(self) -> float | None:
        """Return the maximum norm; None: gradients are not clipped."""
        return self.getOrDefault(self.maxGradNorm)

    def getPrecision(self) -> str:
        return self.getOrDefault(self.precision)

    def getLrSchedulerInterval(self) -> str | None:
        """Return the interval; None: it depends on the scheduler."""
        return self.getOrDefault(self.lrSchedulerInterval)

    def setLearningRate(self, value: float) -> Any:
        return self._set(learningRate=value)

    def setAccumulationSteps(self, value: int) -> Any:
        return self._set(accumulationSteps=value)

    def setMaxGradNorm(self, value: float) -> Any:
        return self._set(maxGradNorm=value)

    def setPrecision(self, value: str) -> Any:
        return self._set(precision=value)

    def setLrSchedulerInterval(self, value: str) -> Any:
        return self._set(lrSchedulerInterval=value)
