"""The rows of recipes: as tensors for plain torch, as record batches for ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from .components import CLASSES, IGNORED, over_classes
from .modules import takes_ids
from .parts import FEATURES, FLAG, IDS, ROOT
from .recipe import Recipe

#: Elements of a Vector, of which the first FEATURES may not be 0. Smaller ones are not kept as pairs.
WIDE = 300


@dataclass(frozen=True)
class Rows:
    """Of one rank, in the order in which they are kept: by id."""

    x: torch.Tensor
    ids: torch.Tensor
    target: torch.Tensor
    weight: torch.Tensor  # as given; float64
    key: np.ndarray

    def inputs(self, recipe: Recipe, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.x[index], self.ids[index]) if takes_ids(recipe) else (self.x[index],)


def make(recipe: Recipe) -> list[Rows]:
    """Of each rank. A quarter of the rows is flagged. ``recipe.data`` may have ``one flagged`` or ``none flagged`` instead;
    ``a zero``, where the gradient of part `rooted` is NaN; ``a large one``, with which gradients overflow in fp16;
    ``an infinity``, which a feature is in fp16."""
    random = np.random.default_rng([recipe.seed, 17])
    total = sum(recipe.rows)
    x = random.normal(size=(total, FEATURES)).astype(np.float32)
    x[:, FLAG] = random.random(total) < 0.25
    if "none flagged" in recipe.data or "one flagged" in recipe.data:
        x[:, FLAG] = 0
    if "one flagged" in recipe.data:
        x[random.integers(total), FLAG] = 1
    x[:, ROOT] = random.uniform(0.5, 1.5, total)
    if "a zero" in recipe.data:
        x[random.integers(total), ROOT] = 0
    if "a large one" in recipe.data:
        x[random.integers(total), 3] = 300.0
    if "an infinity" in recipe.data:
        x[random.integers(total), 2] = 1e6
    ids = random.integers(IDS, size=total)
    if over_classes(recipe):
        target = random.integers(CLASSES, size=total)
        if recipe.loss in ("ignored labels", "class weights"):
            target[random.random(total) < 0.3] = IGNORED
    elif recipe.loss == "mse of two":
        target = random.normal(size=(total, 2)).astype(np.float32)
    else:
        target = random.normal(size=total).astype(np.float32)
    weight = random.uniform(0, 2, total)
    key = random.permutation(1 << 20)[:total] - (1 << 19)
    parts = []
    start = 0
    for count in recipe.rows:
        order = start + np.argsort(key[start : start + count], kind="stable")
        arrays = (torch.from_numpy(array[order]) for array in (x, ids, target, weight))
        parts.append(Rows(*arrays, key[order]))
        start += count
    return parts


def batches(recipe: Recipe, rows: Rows) -> list[pa.RecordBatch]:
    """As Spark gives them to a rank: in another order, in pieces."""
    count = len(rows.x)
    order = np.random.default_rng(recipe.seed).permutation(count)
    x = rows.x.numpy()[order]
    dense = pa.array(list(x), pa.list_(pa.float32()))
    columns: dict[str, pa.Array] = {"input0": dense if recipe.features == "arrays" else _sparse(x)}
    if takes_ids(recipe):
        columns["input1"] = pa.array(rows.ids.numpy()[order])
    target = rows.target.numpy()[order]
    columns["target0"] = pa.array(list(target), pa.list_(pa.float32())) if target.ndim == 2 else pa.array(target)
    if recipe.weights:
        columns["weight"] = pa.array(rows.weight.numpy()[order])
    columns["id"] = pa.array(rows.key[order])
    whole = pa.RecordBatch.from_pydict(columns)
    return [whole.slice(start, 3) for start in range(0, count, 3)]


def _sparse(x: np.ndarray) -> pa.Array:
    """``[rows, FEATURES]`` as Spark gives ML Vectors to ranks."""
    places = [np.flatnonzero(row) for row in x]
    return pa.StructArray.from_arrays(
        [
            pa.array([WIDE] * len(x), pa.int32()),
            pa.array(places, pa.list_(pa.int32())),
            pa.array([row[place] for row, place in zip(x, places, strict=True)], pa.list_(pa.float32())),
        ],
        ["size", "indices", "values"],
    )


def frame(spark: SparkSession, recipe: Recipe, ranks: list[Rows]) -> DataFrame:
    """The DataFrame that the rows would come from, in the order of the ranks, with their numbers in ``row``."""
    label: T.DataType = T.LongType() if over_classes(recipe) else T.FloatType()
    if recipe.loss == "mse of two":
        label = T.ArrayType(label)
    types = {
        "features": T.ArrayType(T.FloatType()) if recipe.features == "arrays" else VectorUDT(),
        "ids": T.LongType(),
        "label": label,
        "weight": T.DoubleType(),
        "row": T.LongType(),
    }
    found: list[tuple[object, ...]] = []
    for rows in ranks:
        for x, *rest in zip(rows.x, rows.ids, rows.target, rows.weight, strict=True):
            given = x.tolist()
            if recipe.features != "arrays":
                given = Vectors.sparse(WIDE, [(place, value) for place, value in enumerate(given) if value])
            found.append((given, *(each.tolist() for each in rest), len(found)))
    return spark.createDataFrame(found, T.StructType([T.StructField(name, kind) for name, kind in types.items()]))
