"""Params of the columns that a model reads and adds."""

from __future__ import annotations

from typing import Any, TypedDict

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasWeightCol,
)

from sparkdl_comm.data.fields import TYPES
from sparkdl_comm.errors import ConfError
from sparkdl_comm.ml.params.base import KeywordParams


class ColumnKeywords(TypedDict, total=False):
    featuresCol: str | list[str]
    featuresCols: list[str]
    inputShapes: list[Any]
    inputTypes: list[Any]
    labelCol: str | list[str]
    labelCols: list[str]
    weightCol: str
    predictionCol: str
    rawPredictionCol: str
    probabilityCol: str
    features_col: str | list[str]
    features_cols: list[str]
    input_shapes: list[Any]
    input_types: list[Any]
    label_col: str | list[str]
    label_cols: list[str]
    weight_col: str
    prediction_col: str
    raw_prediction_col: str
    probability_col: str


class ColumnParams(
    HasFeaturesCol, HasLabelCol, HasWeightCol, HasPredictionCol, HasRawPredictionCol, HasProbabilityCol, KeywordParams
):
    """Params of the input columns, the shapes and types of inputs, and the columns that ``transform`` adds.

    ``transform`` adds ``predictionCol`` and, for a classifier, ``rawPredictionCol`` and ``probabilityCol``. It adds no
    column named "".
    """

    featuresCols: Param[list[str]] = Param(
        Params._dummy(),
        "featuresCols",
        "several feature columns, instead of featuresCol; the model gets one tensor for each",
        TypeConverters.toListString,
    )
    labelCols: Param[list[str]] = Param(
        Params._dummy(),
        "labelCols",
        "several label columns, instead of labelCol; the loss gets a tuple of tensors",
        TypeConverters.toListString,
    )
    inputShapes: Param[list[list[int] | None]] = Param(
        Params._dummy(),
        "inputShapes",
        "shape of one row for each feature column, e.g. [[1, 28, 28]]; None: the column's own shape",
        lambda value: _shapes(value),
    )
    inputTypes: Param[list[str | None]] = Param(
        Params._dummy(),
        "inputTypes",
        f"type of the tensor for each feature column, one of {', '.join(TYPES)}; None: float32, but int64 for integers if "
        "the model has an Embedding; sparse: torch.sparse_coo of float32, for Vectors",
        lambda value: _types(value),
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            featuresCol="features",
            labelCol="label",
            predictionCol="prediction",
            rawPredictionCol="rawPrediction",
            probabilityCol="probability",
            featuresCols=None,
            labelCols=None,
            inputShapes=None,
            inputTypes=None,
            weightCol=None,
        )

    def _set_keywords(self, keywords: dict[str, Any]) -> None:
        """Set Params by either spelling. ``featuresCol`` and ``labelCol`` take a list, too."""
        several = {"featuresCol": "featuresCols", "features_col": "featuresCols", "labelCol": "labelCols"}
        several["label_col"] = "labelCols"
        named: dict[str, Any] = {}
        for keyword, value in keywords.items():
            name = several[keyword] if keyword in several and isinstance(value, (list, tuple)) else keyword
            if name in named:
                raise TypeError(f"{type(self).__name__}: {name} given twice")
            named[name] = value
        super()._set_keywords(named)

    def _check_params(self) -> None:
        super()._check_params()
        for one, several in (("featuresCol", "featuresCols"), ("labelCol", "labelCols")):
            names = self.getOrDefault(several)
            if names is not None and self.isSet(one):
                raise ConfError(f"{one}={self.getOrDefault(one)!r} and {several}={names}: set one of them")
            if names is not None and (not names or len(set(names)) < len(names)):
                raise ConfError(f"{several}={names}: must name at least one column, and none of them twice")
        for param in ("inputShapes", "inputTypes"):
            values = self.getOrDefault(param)
            if values is not None and len(values) != len(self.feature_columns()):
                raise ConfError(
                    f"{param}={values}: must have one entry for each of the feature columns {self.feature_columns()}"
                )
        for shape in self.getInputShapes() or ():
            if shape is not None and any(length < 1 for length in shape):
                raise ConfError(f"inputShapes: {shape} must have lengths of at least 1")
        for dtype in self.getInputTypes() or ():
            if dtype is not None and dtype not in TYPES:
                raise ConfError(f"inputTypes: {dtype!r} must be one of {', '.join(TYPES)}")

    def feature_columns(self) -> list[str]:
        """Return the names of all feature columns, in the order of the model's arguments."""
        return self.getFeaturesCols() or [self.getFeaturesCol()]

    def feature_param(self) -> str:
        """Return the name of the Param that lists the feature columns."""
        return "featuresCol" if self.getFeaturesCols() is None else "featuresCols"

    def label_columns(self) -> list[str]:
        """Return the names of all label columns, in the order in which the loss gets them."""
        return self.getLabelCols() or [self.getLabelCol()]

    def label_param(self) -> str:
        """Return the name of the Param that lists the label columns."""
        return "labelCol" if self.getLabelCols() is None else "labelCols"

    def getFeaturesCols(self) -> list[str] | None:
        return self.getOrDefault(self.featuresCols)

    def getLabelCols(self) -> list[str] | None:
        return self.getOrDefault(self.labelCols)

    def getInputShapes(self) -> list[list[int] | None] | None:
        return self.getOrDefault(self.inputShapes)

    def getInputTypes(self) -> list[str | None] | None:
        return self.getOrDefault(self.inputTypes)

    def getWeightCol(self) -> str | None:  # type: ignore[override]
        """Return the weight column; None: all rows have the same weight. A value of "" counts as None."""
        return self.getOrDefault(self.weightCol) or None

    def setFeaturesCol(self, value: str | list[str]) -> Any:
        """Set one feature column, or several (see ``featuresCols``)."""
        if not isinstance(value, str):
            return self.setFeaturesCols(value)
        self.clear(self.featuresCols)
        return self._set(featuresCol=value)

    def setFeaturesCols(self, value: list[str]) -> Any:
        self.clear(self.featuresCol)
        return self._set(featuresCols=value)

    def setLabelCol(self, value: str | list[str]) -> Any:
        """Set one label column, or several (see ``labelCols``)."""
        if not isinstance(value, str):
            return self.setLabelCols(value)
        self.clear(self.labelCols)
        return self._set(labelCol=value)

    def setLabelCols(self, value: list[str]) -> Any:
        self.clear(self.labelCol)
        return self._set(labelCols=value)

    def setInputShapes(self, value: list[Any]) -> Any:
        return self._set(inputShapes=value)

    def setInputTypes(self, value: list[Any]) -> Any:
        return self._set(inputTypes=value)

    def setWeightCol(self, value: str) -> Any:
        return self._set(weightCol=value)

    def setPredictionCol(self, value: str) -> Any:
        return self._set(predictionCol=value)

    def setRawPredictionCol(self, value: str) -> Any:
        return self._set(rawPredictionCol=value)

    def setProbabilityCol(self, value: str) -> Any:
        return self._set(probabilityCol=value)


def _shapes(value: Any) -> list[list[int] | None]:
    """Convert to a list of shapes. A single shape such as ``[1, 28, 28]`` is allowed."""
    shapes = TypeConverters.toList(value)
    if shapes and all(isinstance(length, int) for length in shapes):
        shapes = [shapes]
    return [None if shape is None else TypeConverters.toListInt(shape) for shape in shapes]


def _types(value: Any) -> list[str | None]:
    """Convert to a list of types. A single type such as ``"int64"`` is allowed."""
    types = [value] if isinstance(value, str) else TypeConverters.toList(value)
    return [None if dtype is None else TypeConverters.toString(dtype) for dtype in types]
