"""A module on its way to executors: there once per executor, made once per Python worker."""

from __future__ import annotations

import functools
import pickle
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pyspark import Broadcast, SparkFiles, cloudpickle
from pyspark.sql import SparkSession

from .session import is_classic


class Shipped:
    """A module to broadcast. What executors find in the broadcast is the module itself.

    Spark pickles the value of a broadcast without cloudpickle, so that a class from a notebook would not
    arrive.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (cloudpickle.dumps(self.module),)


def add_file(spark: SparkSession, path: Path) -> str:
    """Give the tasks of a Spark Connect session a file, which the server keeps until the session ends.

    :return: the name by which ``SparkFiles.get`` finds it.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".sparkdl-") as folder:
        unique = Path(folder, f"sparkdl-{uuid.uuid4().hex}")
        unique.hardlink_to(path)
        spark.addArtifacts(str(unique), file=True)
    return unique.name


@dataclass(frozen=True)
class SessionFile:
    """A module as a file of a Spark Connect session, which has no broadcasts, and whose messages are limited to 128 MiB."""

    name: str

    @classmethod
    def of(cls, spark: SparkSession, module: torch.nn.Module) -> SessionFile:
        with tempfile.NamedTemporaryFile(prefix="sparkdl-ship-") as file:
            file.write(cloudpickle.dumps(module))
            file.flush()
            return cls(add_file(spark, Path(file.name)))

    @property
    def value(self) -> torch.nn.Module:
        return _read(SparkFiles.get(self.name))


@functools.lru_cache(maxsize=1)
def _read(path: str) -> torch.nn.Module:
    return cloudpickle.loads(Path(path).read_bytes())


def ship(spark: SparkSession, module: torch.nn.Module) -> Broadcast[Any] | SessionFile:
    """What executors get the module from, as ``value``."""
    if is_classic(spark):
        return spark.sparkContext.broadcast(Shipped(module))
    return SessionFile.of(spark, module)
