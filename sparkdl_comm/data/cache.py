"""A rank's rows in memory: one array of features and one of labels, in an order that does not depend on the
shuffle.

1. Take the record batches as they come, checking them; drop nothing yet, copy nothing yet.
2. Sort the ``id`` column: Spark's shuffle delivers rows in any order, and the same seed must give the same
   model.
3. Allocate the arrays once and copy every batch to where its rows belong, letting go of it.

So memory peaks at the data as received plus the data as kept, and there is never a Python object per row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from ..errors import InputError


@dataclass(frozen=True)
class Batch:
    """Rows as model and loss take them, on one device.

    ``inputs``: what the model is called with, each ``[rows, …]``. ``targets``: one tensor per label column. ``weights``:
    float32 ``[rows]``, or None.
    """

    inputs: tuple[torch.Tensor, ...]
    targets: tuple[torch.Tensor, ...]
    weights: torch.Tensor | None = None


@dataclass(frozen=True)
class RowCache:
    """The rows of one rank, sorted by id.

    ``features``: float32 ``[rows, width]``. ``labels``: ``[rows]``, int64 for classification, else float32. A
    rank without rows has ``width`` 0. Both tensors share the memory of the numpy arrays they were made from.
    """

    features: torch.Tensor
    labels: torch.Tensor

    @property
    def rows(self) -> int:
        return self.features.shape[0]

    @property
    def width(self) -> int:
        return self.features.shape[1]

    def take(self, index: torch.Tensor, device: torch.device) -> Batch:
        """The rows at ``index`` (int64 ``[n]``), in its order."""
        return Batch((self.features[index].to(device),), (self.labels[index].to(device),))

    @classmethod
    def from_batches(cls, batches: Iterator[pa.RecordBatch], classification: bool) -> RowCache:
        """Read all of this rank's rows.

        :param batches: columns ``features`` (list of numbers, all of one length, or a number), ``label``
            (number) and ``id`` (int64, a hash of the row).
        :param classification: labels are classes, integers; otherwise they are float32 values.
        :raises InputError: null or NaN labels, null features or elements, vectors of different lengths,
            labels that are not integers where classes are wanted; each with the number of rows.
        """
        kept: list[pa.RecordBatch] = []
        faults = _Faults()
        for batch in batches:
            if batch.num_rows:
                faults.look(batch, classification)
                if not faults.found:
                    kept.append(batch)
                else:
                    kept.clear()
        faults.raise_if_any()
        return cls._fill(kept, faults.width, classification)

    @classmethod
    def _fill(cls, kept: list[pa.RecordBatch], width: int, classification: bool) -> RowCache:
        ids = np.concatenate([np.empty(0, np.int64), *(batch["id"].to_numpy(zero_copy_only=False) for batch in kept)])
        place = np.empty(len(ids), np.int64)
        place[np.argsort(ids, kind="stable")] = np.arange(len(ids))
        features = np.empty((len(ids), width), np.float32)
        labels = np.empty(len(ids), np.int64 if classification else np.float32)
        start = 0
        kept.reverse()
        while kept:
            batch = kept.pop()
            rows = place[start : start + batch.num_rows]
            features[rows] = matrix(batch["features"])
            labels[rows] = batch["label"].to_numpy(zero_copy_only=False)
            start += batch.num_rows
        return cls(torch.from_numpy(features), torch.from_numpy(labels))


class _Faults:
    """Rows that cannot be used, counted over all batches, and the length of the feature vectors."""

    def __init__(self) -> None:
        self.rows = 0
        self.width = 0
        self.lengths: set[int] = set()
        self.null_features = self.null_labels = self.nan_labels = self.no_class = 0

    @property
    def found(self) -> bool:
        return len(self.lengths) > 1 or bool(self.null_features or self.null_labels or self.nan_labels or self.no_class)

    def look(self, batch: pa.RecordBatch, classification: bool) -> None:
        self.rows += batch.num_rows
        self.null_features += null_rows(batch["features"])
        self.lengths |= lengths(batch["features"])
        self.width = max(self.lengths, default=0)
        labels = batch["label"]
        self.null_labels += labels.null_count
        if pa.types.is_floating(labels.type):
            values = labels.drop_null().to_numpy(zero_copy_only=False)
            nan = np.isnan(values)
            self.nan_labels += int(nan.sum())
            if classification:
                self.no_class += int((~nan & (np.floor(values) != values)).sum())

    def raise_if_any(self) -> None:
        counted = (
            (self.null_features, "null features (or a null element in them)"),
            (self.null_labels, "a null label"),
            (self.nan_labels, "a NaN label"),
            (self.no_class, "a label that is not an integer, where the loss needs classes"),
        )
        found = [f"{count} of {self.rows} rows have {what}" for count, what in counted if count]
        if len(self.lengths) > 1:
            shown = ", ".join(str(length) for length in sorted(self.lengths)[:8])
            found.append(f"feature vectors of {len(self.lengths)} different lengths in {self.rows} rows: {shown}")
        if found:
            raise InputError("; ".join(found) + ". Drop or fill these rows before fit, e.g. with df.dropna()")


def null_rows(features: pa.Array) -> int:
    """Rows of a feature column that are null or have a null element."""
    if not _is_list(features.type):
        return features.null_count
    flat = features.flatten()
    if flat.null_count == 0:
        return features.null_count
    ends = np.cumsum(_row_lengths(features.drop_null()))
    bad = np.concatenate([[0], np.cumsum(flat.is_null().to_numpy(zero_copy_only=False))])
    return features.null_count + int((np.diff(bad[ends], prepend=0) > 0).sum())


def lengths(features: pa.Array) -> set[int]:
    """The lengths of the feature vectors that are not null; a number counts as a vector of length 1."""
    if not _is_list(features.type):
        return {1} if len(features) > features.null_count else set()
    return {int(length) for length in np.unique(_row_lengths(features.drop_null()))}


def matrix(features: pa.Array) -> np.ndarray:
    """A feature column without nulls, of one length, as float32 ``[rows, width]``; a view where possible."""
    rows = len(features)
    flat = features.flatten() if _is_list(features.type) else features
    values = flat.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return values.reshape(rows, len(values) // rows if rows else 0)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _row_lengths(features: pa.Array) -> np.ndarray:
    """Length of each row of a list column without nulls."""
    if pa.types.is_fixed_size_list(features.type):
        return np.full(len(features), features.type.list_size)
    return np.diff(features.offsets.to_numpy())
