"""Conversion of feature columns in a pandas UDF to numpy arrays.

pandas turns null elements of an array into NaN. So the JVM marks nulls before
(:func:`sparkdl_comm.ml.columns.scoring_inputs`): an array with a null element comes as null, and a number comes with a
flag.

- number: DataFrame of ``value`` and ``null``
- array, nested too: Series of arrays, or None
- Vector: DataFrame of ``type``, ``size``, ``indices``, ``values``
- binary, text: Series of these, or None
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl_comm.data import arrow
from sparkdl_comm.data.fields import Field
from sparkdl_comm.data.ragged import Ragged
from sparkdl_comm.errors import InputError

_VECTOR = {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}


def read(field: Field, column: pd.Series | pd.DataFrame) -> NDArray[Any] | Ragged:
    """Return all rows of a batch, and raise errors, as :func:`sparkdl_comm.data.arrow.read` does."""
    if field.decode is not None:
        return arrow.read(field, pa.array(column, from_pandas=True))
    if "value" in column:
        arrow.refuse_nulls(field, int(column["null"].sum()), len(column))
        return arrow.cast_rows(field, column["value"].to_numpy())
    if isinstance(column, pd.DataFrame):
        kinds = column["type"]
        if field.dtype == "sparse" or not (kinds == 1).all():  # nulls, or sparse
            parts = [pa.array(column[name], kind, from_pandas=True) for name, kind in _VECTOR.items()]
            rows = pa.StructArray.from_arrays(parts, list(_VECTOR), mask=pa.array(kinds.isna()))
            return arrow.read(field, rows)
        column = column["values"]
    arrow.refuse_nulls(field, int(column.isna().sum()), len(column))
    arrays = column.to_numpy()
    if field.collate is None:
        return arrow.cast_rows(field, _stack(field, arrays, len(column)))
    elements = np.concatenate(arrays)
    if elements.dtype == object and len(elements):
        elements = _stack(field, elements, len(column))
    return Ragged.of(field, elements, np.array([len(array) for array in arrays]))


def _stack(field: Field, arrays: NDArray[Any], rows: int) -> NDArray[Any]:
    """Stack ``arrays`` to ``[rows, length, …]``.

    :raises InputError: they differ in length.
    """
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        raise InputError(f"{field}: arrays of different lengths in {rows} rows: {arrow.format_lengths([lengths])}")
    flat: NDArray[Any] = np.concatenate(arrays)
    if flat.dtype == object:
        flat = _stack(field, flat, rows)
    return flat.reshape(len(arrays), *lengths, *flat.shape[1:])
