"""Params of predictions with a trained model."""

from __future__ import annotations

from typing import Any, TypedDict

from pyspark.ml.param import Param, Params, TypeConverters

from sparkdl_comm.ml.params.base import KeywordParams


class PredictionKeywords(TypedDict, total=False):
    predictBatchSize: int
    predict_batch_size: int


class PredictionParams(KeywordParams):
    """Param ``predictBatchSize``."""

    predictBatchSize: Param[int] = Param(
        Params._dummy(), "predictBatchSize", "rows per forward pass in transform", TypeConverters.toInt
    )

    def __init__(self) -> None:
        super().__init__()
        # small enough that the activations of a small CNN stay in the CPU's cache, large enough to hide the calls' cost
        self._setDefault(predictBatchSize=256)

    def _check_params(self) -> None:
        super()._check_params()
        self._check_at_least(1, "predictBatchSize")

    def getPredictBatchSize(self) -> int:
        return self.getOrDefault(self.predictBatchSize)

    def setPredictBatchSize(self, value: int) -> Any:
        return self._set(predictBatchSize=value)
