"""Descriptions of the columns that a rank gets and of their tensors. The driver makes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

#: Function from an encoded value (bytes or text) to an array or a tensor.
Decode: TypeAlias = Callable[[Any], Any]
#: Function from rows of different lengths, each ``[length, …]``, to the model's argument.
Collate: TypeAlias = Callable[[list[torch.Tensor]], Any]

#: Values of ``inputTypes``. ``sparse``: a float32 tensor with layout torch.sparse_coo, for Vectors.
TYPES = ("float32", "float64", "int64", "int32", "uint8", "sparse")


@dataclass(frozen=True)
class Field:
    """Description of a column and its tensor.

    ``param``, ``name``: name of the Param that selects the column, and name of the column. ``dtype``: type of the
    tensor. None: float32, but int64 for integers if ``embeds``. ``shape``: of one row. None: as the column comes, but a
    number that is not an integer has shape ``[1]``. ``decode``: makes an array or tensor from a value, with one shape
    for all values. None: the column holds numbers. ``embeds``: integers stay int64, because the model looks something
    up by them. ``limits``: smallest and largest allowed value. None: any value. ``collate``: makes a batch of rows
    whose first dimension may differ. None: all rows have one shape. ``width``: size of the column's Vectors, 0 until rows
    are read (see :mod:`sparkdl_comm.data.vectors`). None: it has no Vectors.
    """

    param: str
    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    decode: Decode | None = None
    embeds: bool = False
    limits: tuple[float, float] | None = None
    collate: Collate | None = None
    width: int | None = None

    def __str__(self) -> str:
        return f"{'decode of ' if self.decode else ''}{self.param} {self.name!r}"

    def type_of(self, source: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type of the tensor for values of type ``source``."""
        if self.dtype == "sparse":
            return np.dtype(np.float32)
        if self.dtype is not None:
            return np.dtype(self.dtype)
        return np.dtype(np.int64 if self.embeds and source.kind in "iu" else np.float32)

    def storage_type(self, source: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type in which values of type ``source`` are kept: the tensor's type, but words keep theirs."""
        return self.type_of(source) if self.width is None else source

    @property
    def is_ragged(self) -> bool:
        """True if rows may be kept in different lengths."""
        return self.collate is not None or self.width is not None

    @property
    def is_wide(self) -> bool:
        """True if the tensor's type holds numbers that float32 cannot represent."""
        return self.dtype not in (None, "float32", "sparse")

    def row_shape(self, found: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
        """Return the shape of one row in the tensor, for rows of shape ``found`` (``()``: a number)."""
        if self.shape is not None:
            return self.shape
        return (1,) if found == () and dtype.kind == "f" else found

    def fits(self, found: tuple[int, ...]) -> bool:
        """Return True if a row of shape ``found`` has as many values as the shape asked for."""
        return self.shape is None or math.prod(found) == math.prod(self.shape)


@dataclass(frozen=True)
class RowFormat:
    """Description of the record batches that a rank gets.

    Their columns are ``input0``, …, ``target0``, …, and ``id`` (int64, a hash of the row's contents). If the attributes
    of the same name are set, there are also ``weight`` (double) and ``validation`` (bool: the row is for validation,
    not for training). These two attributes name Param and column, for messages.
    """

    inputs: tuple[Field, ...] = ()
    targets: tuple[Field, ...] = ()
    weight: str | None = None
    validation: str | None = None

    def named_fields(self) -> list[tuple[str, Field]]:
        """Return all input and target columns with their names in a record batch."""
        return [
            *((f"input{index}", field) for index, field in enumerate(self.inputs)),
            *((f"target{index}", field) for index, field in enumerate(self.targets)),
        ]

    def for_model(self, module: torch.nn.Module) -> RowFormat:
        """Return this format, keeping integers as int64 if ``module`` has an embedding layer."""
        return replace(self, inputs=for_model(self.inputs, module))


def for_model(inputs: tuple[Field, ...], module: torch.nn.Module) -> tuple[Field, ...]:
    """Return ``inputs``, changed as :meth:`RowFormat.for_model` does."""
    embeds = any(isinstance(layer, (torch.nn.Embedding, torch.nn.EmbeddingBag)) for layer in module.modules())
    return tuple(replace(field, embeds=embeds) for field in inputs)
