"""Params of checkpoints."""

from __future__ import annotations

from typing import Any, TypedDict

from pyspark.ml.param import Param, Params, TypeConverters

from sparkdl_comm.errors import ConfError
from sparkdl_comm.ml.params.base import KeywordParams


class CheckpointKeywords(TypedDict, total=False):
    checkpointDir: str
    checkpointInterval: int
    checkpointSeconds: float
    checkpointKeep: int
    resume: bool
    checkpoint_dir: str
    checkpoint_interval: int
    checkpoint_seconds: float
    checkpoint_keep: int


class CheckpointParams(KeywordParams):
    """Params ``checkpointDir``, ``checkpointInterval``, ``checkpointSeconds``, ``checkpointKeep``, ``resume``."""

    checkpointDir: Param[str] = Param(
        Params._dummy(),
        "checkpointDir",
        "directory for checkpoints, any path that Hadoop reaches. All executors must share a local one. Not set: none",
        TypeConverters.toString,
    )
    checkpointInterval: Param[int] = Param(
        Params._dummy(),
        "checkpointInterval",
        "steps between checkpoints; with strategy fabric, updates of the model, rounded up to the end of an epoch",
        TypeConverters.toInt,
    )
    checkpointSeconds: Param[float] = Param(
        Params._dummy(), "checkpointSeconds", "seconds between checkpoints", TypeConverters.toFloat
    )
    checkpointKeep: Param[int] = Param(
        Params._dummy(), "checkpointKeep", "number of newest checkpoints to keep", TypeConverters.toInt
    )
    resume: Param[bool] = Param(
        Params._dummy(),
        "resume",
        "continue from the newest checkpoint in checkpointDir, if there is one",
        TypeConverters.toBoolean,
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            checkpointDir=None, checkpointInterval=None, checkpointSeconds=None, checkpointKeep=2, resume=False
        )

    def _check_params(self) -> None:
        super()._check_params()
        self._check_at_least(1, "checkpointInterval", "checkpointKeep")
        seconds, directory = self.getCheckpointSeconds(), self.getCheckpointDir()
        if seconds is not None and not seconds > 0:
            raise ConfError(f"checkpointSeconds={seconds}: must be more than 0")
        often = self.getCheckpointInterval() is not None or seconds is not None
        if directory is not None and not often:
            raise ConfError(f"checkpointDir={directory}: set checkpointInterval (steps) or checkpointSeconds too")
        if directory is None and (often or self.getResume()):
            raise ConfError("checkpointInterval, checkpointSeconds and resume need checkpointDir; it is not set")

    def getCheckpointDir(self) -> str | None:
        """Return the directory; None: no checkpoints."""
        return self.getOrDefault(self.checkpointDir)

    def getCheckpointInterval(self) -> int | None:
        return self.getOrDefault(self.checkpointInterval)

    def getCheckpointSeconds(self) -> float | None:
        return self.getOrDefault(self.checkpointSeconds)

    def getCheckpointKeep(self) -> int:
        return self.getOrDefault(self.checkpointKeep)

    def getResume(self) -> bool:
        return self.getOrDefault(self.resume)

    def setCheckpointDir(self, value: str) -> Any:
        return self._set(checkpointDir=value)

    def setCheckpointInterval(self, value: int) -> Any:
        return self._set(checkpointInterval=value)

    def setCheckpointSeconds(self, value: float) -> Any:
        return self._set(checkpointSeconds=value)

    def setCheckpointKeep(self, value: int) -> Any:
        return self._set(checkpointKeep=value)

    def setResume(self, value: bool) -> Any:
        return self._set(resume=value)
