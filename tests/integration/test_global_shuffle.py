"""Rows that are dealt anew over three executors in each epoch, decoded once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from lab.settings import applied
from pyspark.sql import SparkSession

from sparkdl_comm import TorchModel
from tests.integration.nets import Small, told_floats, told_rows
from tests.integration.test_training import ROWS, fit, same_bits

DATA = "spark.sparkdl.comm.data."
EPOCHS = 3


@pytest.fixture
def shuffled(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    caches = {"cacheName": "shuffled", "cacheDir": str(tmp_path / "caches")}
    settings = {**caches, "memoryLimit": "2KiB", "shuffle": "global"}
    with applied(spark, settings, DATA):
        yield


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> str:
    """Encoded rows, the first of whose numbers is the row's."""
    features = np.random.default_rng(4).standard_normal((ROWS, 28), np.float32)
    features[:, 0] = np.arange(ROWS)
    rows = [(each.tobytes(), number % 10) for number, each in enumerate(features)]
    path = tmp_path / "rows"
    spark.createDataFrame(rows, "features binary, label long").repartition(4).write.parquet(str(path))
    return str(path)


def told(folder: Path) -> dict[str, list[int]]:
    """Rows by process, in their order; the folder is empty afterwards."""
    found = {file.name: list(map(int, file.read_text().split())) for file in folder.iterdir()}
    for file in folder.iterdir():
        file.unlink()
    return found


@pytest.mark.usefixtures("shuffled")
@pytest.mark.slow
def test_each_epoch_has_all_rows_on_other_ranks(spark: SparkSession, path: str, tmp_path: Path) -> None:
    decoded, seen = tmp_path / "decoded", tmp_path / "seen"
    decoded.mkdir()
    seen.mkdir()

    def once() -> tuple[TorchModel, int, set[str]]:
        """The model, how many rows were decoded, and the processes."""
        model = fit(
            spark.read.parquet(path), model=Small, epochs=EPOCHS, batch=20, strategy="gloo",
            decode=functools.partial(told_floats, str(decoded)), augment=functools.partial(told_rows, str(seen)),
        )  # fmt: skip
        epochs: list[list[set[int]]] = [[] for _ in range(EPOCHS)]
        by_process = told(seen)
        for rows in by_process.values():
            count = len(rows) // EPOCHS
            for epoch, hands in enumerate(epochs):
                hands.append(set(rows[epoch * count : (epoch + 1) * count]))
        for hands in epochs:
            assert sorted(row for hand in hands for row in hand) == list(range(ROWS))
        for one, other in itertools.pairwise(epochs):
            assert all(mine != theirs for mine, theirs in zip(one, other, strict=True))
        return model, sum(map(len, told(decoded).values())), set(by_process)

    first, rows, _ = once()
    assert rows == ROWS, "each once, in three epochs"
    data = first.summary["data"]
    assert (data["cache"], data["reused"]) == ("disk", False)
    assert 0 < data["held"] <= 3 * 2048 < data["bytes"]
    second, rows, processes = once()
    assert (rows, second.summary["data"]["reused"]) == (0, True)
    assert same_bits(first, second)
    for name, value in (("memoryLimit", "0"), ("cacheName", "")):
        spark.conf.set(DATA + name, value)
    in_memory, rows, later = once()
    assert (rows, in_memory.summary["data"]["held"]) == (ROWS, 0)
    assert same_bits(first, in_memory)
    assert later == processes, "a fit that finds its rows leaves Spark's Python workers to the next one"
    spark.conf.set(DATA + "shuffle", "local")
    decode = functools.partial(told_floats, str(decoded))
    local = fit(spark.read.parquet(path), model=Small, epochs=EPOCHS, batch=20, strategy="gloo", decode=decode)
    assert not same_bits(first, local)
