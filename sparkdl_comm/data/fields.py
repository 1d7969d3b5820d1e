"""Which columns a rank gets, and what tensors become of them. Plain descriptions, made by the driver."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

#: What a value of a column of encoded bytes (or of text) is given to; returns an array or a tensor.
Decode: TypeAlias = Callable[[Any], Any]
#: Rows of different lengths, each ``[length, …]`` -> what the model is called with.
Collate: TypeAlias = Callable[[list[torch.Tensor]], Any]

#: Types that ``inputTypes`` may name. ``sparse``: a float32 tensor of the layout torch.sparse_coo, for Vectors.
TYPES = ("float32", "float64", "int64", "int32", "uint8", "sparse")


@dataclass(frozen=True)
class Field:
    """One column on its way to a tensor.

    ``param`` and ``name``: the Param that names the column, and its name. ``dtype``: of the tensor; None: float32, but
    int64 for integers if ``embeds``. ``shape``: of one row; None: as it comes, where a number that is not an integer comes
    as ``[1]``. ``decode``: makes an array or tensor of a value, all of one shape; None: the column holds numbers.
    ``limits``: the smallest and the largest value that may be there; None: any. ``collate``: makes a batch of rows that may
    differ in length, their first dimension; None: all rows are of one shape. ``width``: of Vectors that are kept as pairs (see
    :mod:`sparkdl_comm.data.sparse`); None: rows are kept whole.
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
        """Type of the tensor for values of type ``source``."""
        if self.dtype == "sparse":
            return np.dtype(np.float32)
        if self.dtype is not None:
            return np.dtype(self.dtype)
        return np.dtype(np.int64 if self.embeds and source.kind in "iu" else np.float32)

    def kept_type(self, source: np.dtype[Any]) -> np.dtype[Any]:
        """Type in which values of type ``source`` are kept: the tensor's, but pairs stay as they are."""
        return self.type_of(source) if self.width is None else source

    @property
    def is_ragged(self) -> bool:
        """Whether rows may be kept in different lengths."""
        return self.collate is not None or self.width is not None

    @property
    def is_wide(self) -> bool:
        """Whether the tensor's type takes numbers that a float32 does not."""
        return self.dtype not in (None, "float32", "sparse")

    def row_shape(self, found: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
        """Shape of one row in the tensor, for rows that come as ``found`` (``()``: a number)."""
        if self.shape is not None:
            return self.shape
        return (1,) if found == () and dtype.kind == "f" else found

    def fits(self, found: tuple[int, ...]) -> bool:
        """Whether a row that comes as ``found`` can have the shape asked for."""
        return self.shape is None or math.prod(found) == math.prod(self.shape)


@dataclass(frozen=True)
class RowFormat:
    """The columns of the record batches that a rank gets: ``input0``, …, ``target0``, …, ``id`` (int64, a hash of all that
    is in the row) and, if they have a name here, ``weight`` (double) and ``validation`` (boolean: the row is for validation,
    not for training). These names, of Param and column, are for messages."""

    inputs: tuple[Field, ...] = ()
    targets: tuple[Field, ...] = ()
    weight: str | None = None
    validation: str | None = None

    def named(self) -> list[tuple[str, Field]]:
        """All columns that become inputs and targets, with their names in a record batch."""
        return [
            *((f"input{index}", field) for index, field in enumerate(self.inputs)),
            *((f"target{index}", field) for index, field in enumerate(self.targets)),
        ]

    def for_model(self, module: torch.nn.Module) -> RowFormat:
        """This format with integers kept as such, if ``module`` looks something up by them."""
        return replace(self, inputs=for_model(self.inputs, module))


def for_model(inputs: tuple[Field, ...], module: torch.nn.Module) -> tuple[Field, ...]:
    """See :meth:`RowFormat.for_model`."""
    embeds = any(isinstance(layer, (torch.nn.Embedding, torch.nn.EmbeddingBag)) for layer in module.modules())
    return tuple(replace(field, embeds=embeds) for field in inputs)
