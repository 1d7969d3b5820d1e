"""Params of the validation rows."""

from __future__ import annotations

from typing import Any, TypedDict

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasValidationIndicatorCol

from sparkdl_comm.errors import ConfError
from sparkdl_comm.ml.params.base import KeywordParams


class ValidationKeywords(TypedDict, total=False):
    validationIndicatorCol: str
    validationFraction: float
    validation_indicator_col: str
    validation_fraction: float


class ValidationParams(HasValidationIndicatorCol, KeywordParams):
    """Params ``validationIndicatorCol`` and ``validationFraction``. They select rows for evaluation after
    each epoch."""

    validationFraction: Param[float] = Param(
        Params._dummy(),
        "validationFraction",
        "approximate share of the rows for validation, instead of validationIndicatorCol; selected by a hash of the row"
        " and the seed, so equal rows stay together. Not set: none",
        TypeConverters.toFloat,
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(validationIndicatorCol=None, validationFraction=None)

    def _check_params(self) -> None:
        super()._check_params()
        fraction, column = self.getValidationFraction(), self.getValidationIndicatorCol()
        if fraction is not None and not 0 < fraction < 1:
            raise ConfError(f"validationFraction={fraction}: must be between 0 and 1")
        if fraction is not None and column is not None:
            raise ConfError(f"validationIndicatorCol={column!r} and validationFraction={fraction}: set one of them")

    def getValidationIndicatorCol(self) -> str | None:  # type: ignore[override]
        """Return the bool column that marks rows for validation, or None. A value of "" counts as None."""
        return self.getOrDefault(self.validationIndicatorCol) or None

    def getValidationFraction(self) -> float | None:
        """Return the share of rows for validation, or None."""
        return self.getOrDefault(self.validationFraction)

    def setValidationIndicatorCol(self, value: str) -> Any:
        return self._set(validationIndicatorCol=value)

    def setValidationFraction(self, value: float) -> Any:
        return self._set(validationFraction=value)
