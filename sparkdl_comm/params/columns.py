"""Params about columns: what a model reads and what it adds."""

from __future__ import annotations

from typing import Any, TypedDict

from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
)

from .base import KeywordParams


class ColumnKeywords(TypedDict, total=False):
    featuresCol: str
    labelCol: str
    predictionCol: str
    rawPredictionCol: str
    probabilityCol: str
    features_col: str
    label_col: str
    prediction_col: str
    raw_prediction_col: str
    probability_col: str


class ColumnParams(
    HasFeaturesCol, HasLabelCol, HasPredictionCol, HasRawPredictionCol, HasProbabilityCol, KeywordParams
):
    """``featuresCol``, ``labelCol``, and ``predictionCol``, ``rawPredictionCol`` and ``probabilityCol``, which
    ``transform`` adds; the last two only to a classifier, and none that is called ""."""

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            featuresCol="features",
            labelCol="label",
            predictionCol="prediction",
            rawPredictionCol="rawPrediction",
            probabilityCol="probability",
        )

    def setFeaturesCol(self, value: str) -> Any:
        return self._set(featuresCol=value)

    def setLabelCol(self, value: str) -> Any:
        return self._set(labelCol=value)

    def setPredictionCol(self, value: str) -> Any:
        return self._set(predictionCol=value)

    def setRawPredictionCol(self, value: str) -> Any:
        return self._set(rawPredictionCol=value)

    def setProbabilityCol(self, value: str) -> Any:
        return self._set(probabilityCol=value)
