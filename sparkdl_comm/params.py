"""Params of the estimator and the model, named as pyspark.ml and xgboost.spark name them."""

from __future__ import annotations

import difflib
from typing import Any, TypedDict

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasMaxIter, HasPredictionCol, HasSeed

from .errors import ConfError

#: snake_case spellings of Params, accepted as keywords.
ALIASES = {
    "features_col": "featuresCol",
    "label_col": "labelCol",
    "prediction_col": "predictionCol",
    "batch_size": "batchSize",
    "max_iter": "maxIter",
}


class ParamKeywords(TypedDict, total=False):
    """Keywords of the constructor and of ``setParams``: every Param, and its snake_case spelling."""

    featuresCol: str
    labelCol: str
    predictionCol: str
    batchSize: int
    maxIter: int
    seed: int
    num_workers: int
    device: str
    strategy: str
    features_col: str
    label_col: str
    prediction_col: str
    batch_size: int
    max_iter: int


class TorchParams(HasFeaturesCol, HasLabelCol, HasPredictionCol, HasMaxIter, HasSeed):
    """What estimator and model share. A Param set here overrides the session's conf."""

    batchSize: Param[int] = Param(
        Params._dummy(),
        "batchSize",
        "rows per step over all ranks; in transform, rows per forward pass",
        TypeConverters.toInt,
    )
    num_workers: Param[int] = Param(
        Params._dummy(),
        "num_workers",
        "number of ranks; not set: one per slot of the cluster",
        TypeConverters.toInt,
    )
    device: Param[str] = Param(Params._dummy(), "device", "cpu or cuda", TypeConverters.toString)
    strategy: Param[str] = Param(
        Params._dummy(),
        "strategy",
        "how gradients and parameters travel; not set: spark.sparkdl.comm.strategy",
        TypeConverters.toString,
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            featuresCol="features",
            labelCol="label",
            predictionCol="prediction",
            batchSize=32,
            maxIter=1,
            seed=0,
            num_workers=None,
            device="cpu",
            strategy=None,
        )

    def _set_keywords(self, keywords: dict[str, Any]) -> None:
        """Set Params by either spelling. ``TypeError``: unknown, given twice, or of the wrong type."""
        values: dict[str, Any] = {}
        for keyword, value in keywords.items():
            name = ALIASES.get(keyword, keyword)
            if not self.hasParam(name):
                known = sorted({*ALIASES, *(param.name for param in self.params)})
                nearest = difflib.get_close_matches(keyword, known, n=1, cutoff=0.0)[0]
                raise TypeError(f"{type(self).__name__}: unknown parameter {keyword!r}; did you mean {nearest!r}?")
            if name in values:
                raise TypeError(f"{type(self).__name__}: {name} given twice, as {name} and as {keyword}")
            values[name] = value
        self._set(**values)

    def _check_params(self) -> None:
        """:class:`ConfError` naming Param, value and limit, if a value cannot be used."""
        for name in ("batchSize", "maxIter", "num_workers"):
            value = self.getOrDefault(name)
            if value is not None and value < 1:
                raise ConfError(f"{name}={value}: must be at least 1")
        if self.getDevice() not in ("cpu", "cuda"):
            raise ConfError(f"device={self.getDevice()!r}: must be cpu or cuda")

    def getBatchSize(self) -> int:
        return self.getOrDefault(self.batchSize)

    def getNumWorkers(self) -> int | None:
        """None: one per slot of the cluster."""
        return self.getOrDefault(self.num_workers)

    def getDevice(self) -> str:
        return self.getOrDefault(self.device)

    def getStrategy(self) -> str | None:
        """None: what ``spark.sparkdl.comm.strategy`` says."""
        return self.getOrDefault(self.strategy)

    def setFeaturesCol(self, value: str) -> Any:
        return self._set(featuresCol=value)

    def setLabelCol(self, value: str) -> Any:
        return self._set(labelCol=value)

    def setPredictionCol(self, value: str) -> Any:
        return self._set(predictionCol=value)

    def setBatchSize(self, value: int) -> Any:
        return self._set(batchSize=value)

    def setMaxIter(self, value: int) -> Any:
        return self._set(maxIter=value)

    def setSeed(self, value: int) -> Any:
        return self._set(seed=value)

    def setNumWorkers(self, value: int) -> Any:
        return self._set(num_workers=value)

    def setDevice(self, value: str) -> Any:
        return self._set(device=value)

    def setStrategy(self, value: str) -> Any:
        return self._set(strategy=value)
