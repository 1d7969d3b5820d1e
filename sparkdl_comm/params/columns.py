"""Params about columns: what a model reads and what it adds."""

from __future__ import annotations

from typing import Any, TypedDict

from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol

from .base import KeywordParams


class ColumnKeywords(TypedDict, total=False):
    featuresCol: str
    labelCol: str
    predictionCol: str
    features_col: str
    label_col: str
    prediction_col: str


class ColumnParams(HasFeaturesCol, HasLabelCol, HasPredictionCol, KeywordParams):
    """``featuresCol``, ``labelCol``, and ``predictionCol``, which ``transform`` adds."""

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(featuresCol="features", labelCol="label", predictionCol="prediction")

    def setFeaturesCol(self, value: str) -> Any:
        return self._set(featuresCol=value)

    def setLabelCol(self, value: str) -> Any:
        return self._set(labelCol=value)

    def setPredictionCol(self, value: str) -> Any:
        return self._set(predictionCol=value)
