"""Params of the cluster: where ranks run, and how they communicate."""

from __future__ import annotations

from typing import Any, TypedDict

from pyspark.ml.param import Param, Params, TypeConverters

from sparkdl_comm.ml.params.base import KeywordParams


class ClusterKeywords(TypedDict, total=False):
    num_workers: int
    device: str
    strategy: str
    compression: str


class ClusterParams(KeywordParams):
    """Params ``num_workers``, ``device``, ``strategy``, ``compression``."""

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
    compression: Param[str] = Param(
        Params._dummy(),
        "compression",
        "which elements of gradients travel, such as exact:0.01; not set: spark.sparkdl.comm.compression",
        TypeConverters.toString,
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(num_workers=None, device="cpu", strategy=None, compression=None)

    def _check_params(self) -> None:
        super()._check_params()
        self._check_at_least(1, "num_workers")
        self._check_one_of("device", "cpu", "cuda")

    def getNumWorkers(self) -> int | None:
        """Return the number of ranks; None: one per slot of the cluster."""
        return self.getOrDefault(self.num_workers)

    def getDevice(self) -> str:
        return self.getOrDefault(self.device)

    def getStrategy(self) -> str | None:
        """Return the strategy; None: the one of ``spark.sparkdl.comm.strategy``."""
        return self.getOrDefault(self.strategy)

    def getCompression(self) -> str | None:
        """Return the compression; None: the one of ``spark.sparkdl.comm.compression``."""
        return self.getOrDefault(self.compression)

    def setNumWorkers(self, value: int) -> Any:
        return self._set(num_workers=value)

    def setDevice(self, value: str) -> Any:
        return self._set(device=value)

    def setStrategy(self, value: str) -> Any:
        return self._set(strategy=value)

    def setCompression(self, value: str) -> Any:
        return self._set(compression=value)
