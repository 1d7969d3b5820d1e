"""Params of the training loop."""

from __future__ import annotations

from typing import Any, TypedDict

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasMaxIter, HasSeed

from sparkdl_comm.ml.params.base import KeywordParams


class TrainingKeywords(TypedDict, total=False):
    batchSize: int
    maxIter: int
    seed: int
    batch_size: int
    max_iter: int


class TrainingParams(HasMaxIter, HasSeed, KeywordParams):
    """Params ``batchSize``, ``maxIter``, ``seed``."""

    batchSize: Param[int] = Param(
        Params._dummy(),
        "batchSize",
        "rows per batch over all ranks; a step uses accumulationSteps batches",
        TypeConverters.toInt,
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(batchSize=32, maxIter=1, seed=0)

    def _check_params(self) -> None:
        super()._check_params()
        self._check_at_least(1, "batchSize", "maxIter")

    def getBatchSize(self) -> int:
        return self.getOrDefault(self.batchSize)

    def setBatchSize(self, value: int) -> Any:
        return self._set(batchSize=value)

    def setMaxIter(self, value: int) -> Any:
        return self._set(maxIter=value)

    def setSeed(self, value: int) -> Any:
        return self._set(seed=value)
