"""Params of early stopping."""

from __future__ import annotations

from typing import Any, TypedDict

from pyspark.ml.param import Param, Params, TypeConverters

from sparkdl_comm.errors import ConfError
from sparkdl_comm.ml.params.base import KeywordParams


class EarlyStoppingKeywords(TypedDict, total=False):
    earlyStoppingPatience: int
    earlyStoppingMonitor: str
    earlyStoppingMinDelta: float
    earlyStoppingMode: str
    restoreBestModel: bool
    early_stopping_patience: int
    early_stopping_monitor: str
    early_stopping_min_delta: float
    early_stopping_mode: str
    restore_best_model: bool


class EarlyStoppingParams(KeywordParams):
    """Params ``earlyStoppingPatience``, ``earlyStoppingMonitor``, ``earlyStoppingMinDelta``, ``earlyStoppingMode``,
    ``restoreBestModel``."""

    earlyStoppingPatience: Param[int] = Param(
        Params._dummy(),
        "earlyStoppingPatience",
        "stop after this many epochs without improvement of the monitored value; not set: never",
        TypeConverters.toInt,
    )
    earlyStoppingMonitor: Param[str] = Param(
        Params._dummy(),
        "earlyStoppingMonitor",
        "the value to watch: val_loss, loss or a metric's name; ReduceLROnPlateau watches it too",
        TypeConverters.toString,
    )
    earlyStoppingMinDelta: Param[float] = Param(
        Params._dummy(),
        "earlyStoppingMinDelta",
        "minimum change that counts as an improvement, exclusive",
        TypeConverters.toFloat,
    )
    earlyStoppingMode: Param[str] = Param(
        Params._dummy(), "earlyStoppingMode", "direction of improvement: min or max", TypeConverters.toString
    )
    restoreBestModel: Param[bool] = Param(
        Params._dummy(),
        "restoreBestModel",
        "with early stopping, return the parameters of the best epoch; each rank keeps a copy of them",
        TypeConverters.toBoolean,
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            earlyStoppingPatience=None,
            earlyStoppingMonitor="val_loss",
            earlyStoppingMinDelta=0.0,
            earlyStoppingMode="min",
            restoreBestModel=True,
        )

    def _check_params(self) -> None:
        super()._check_params()
        self._check_at_least(1, "earlyStoppingPatience")
        self._check_one_of("earlyStoppingMode", "min", "max")
        delta = self.getEarlyStoppingMinDelta()
        if not delta >= 0:
            raise ConfError(f"earlyStoppingMinDelta={delta}: must be at least 0")

    def getEarlyStoppingPatience(self) -> int | None:
        """Return the number of epochs; None: training does not stop early."""
        return self.getOrDefault(self.earlyStoppingPatience)

    def getEarlyStoppingMonitor(self) -> str:
        return self.getOrDefault(self.earlyStoppingMonitor)

    def getEarlyStoppingMinDelta(self) -> float:
        return self.getOrDefault(self.earlyStoppingMinDelta)

    def getEarlyStoppingMode(self) -> str:
        return self.getOrDefault(self.earlyStoppingMode)

    def getRestoreBestModel(self) -> bool:
        return self.getOrDefault(self.restoreBestModel)

    def setEarlyStoppingPatience(self, value: int) -> Any:
        return self._set(earlyStoppingPatience=value)

    def setEarlyStoppingMonitor(self, value: str) -> Any:
        return self._set(earlyStoppingMonitor=value)

    def setEarlyStoppingMinDelta(self, value: float) -> Any:
        return self._set(earlyStoppingMinDelta=value)

    def setEarlyStoppingMode(self, value: str) -> Any:
        return self._set(earlyStoppingMode=value)

    def setRestoreBestModel(self, value: bool) -> Any:
        return self._set(restoreBestModel=value)
