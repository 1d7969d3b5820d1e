"""Columns of a DataFrame that a model reads, checked against its schema and prepared for Arrow.

Accepted are numbers, booleans, arrays of them (nested too) and ML or MLlib Vectors, dense and sparse. Features may also
be binary or text, which executors pass to the user's ``decode``. Integers and booleans leave Spark as integers. All
other numbers leave it as float32, or as float64 where float32 would change an integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegralType,
    NumericType,
    StringType,
)

from sparkdl_comm.data.fields import Collate, Decode, Field, RowFormat
from sparkdl_comm.errors import InputError
from sparkdl_comm.job.arrow_batches import (
    ROW_BYTES_IF_UNKNOWN,
    limit_batches,
    measure_columns,
    width_from_metadata,
)
from sparkdl_comm.ml.params import TorchParams
from sparkdl_comm.train.diagnosis import first_layer

#: Function ``(integral, scalar)`` -> type of the tensor.
TargetType: TypeAlias = Callable[[bool, bool], str]

_VECTORS = (VectorUDT, OldVectorUDT)

#: Number that arrays of any type hardly ever contain.
_RARE_NUMBER = -77

#: Number of ranges of row hashes. ``validationFraction`` selects the first ones.
_HASH_RANGES = 1_000_000


def training_columns(
    df: DataFrame,
    params: TorchParams,
    target_type: TargetType,
    decode: Decode | None,
    limits: tuple[float, float] | None = None,
    collate: Collate | None = None,
) -> tuple[list[Column], RowFormat]:
    """Return the columns that become inputs and targets, in the order of
    ``RowFormat.named_fields()``, and their description.

    Starts no Spark job. :func:`training_rows` makes rows of the columns.

    :param target_type: type of the tensor of a label column, ``int64`` or ``float32``; see
        :func:`sparkdl_comm.ml.components.target_type`.
    :param decode: for feature columns that are binary or text.
    :param limits: smallest and largest allowed label.
    :param collate: makes a batch from the rows of a feature column of arrays, or a decoded one, without a shape in
        ``inputShapes``.
    :raises InputError: a column is missing, ambiguous, or has a type that is not accepted; or ``collate`` is given but
        no column needs it.
    """
    expressions, fields = feature_inputs(df, params, decode, collate)
    targets = []
    for name in params.label_columns():
        field = replace(_label_field(df, name, params.label_param(), target_type), limits=limits)
        expressions.append(to_numbers(df, field))
        targets.append(field)
    weight, indicator = params.getWeightCol(), params.getValidationIndicatorCol()
    if weight is not None:
        kind = _column_type(df, weight, "weightCol")
        if not isinstance(kind, NumericType):
            raise InputError(f"weightCol: column {weight!r} is {kind.simpleString()}; accepted are numbers")
    if indicator is not None:
        kind = _column_type(df, indicator, "validationIndicatorCol")
        if not isinstance(kind, BooleanType):
            raise InputError(f"validationIndicatorCol: column {indicator!r} is {kind.simpleString()}; must be boolean")
    return expressions, RowFormat(tuple(fields), tuple(targets), weight, _describe_validation(params))


def training_rows(df: DataFrame, params: TorchParams, expressions: Sequence[Column], rows: RowFormat) -> DataFrame:
    """Return the DataFrame that ranks get from ``df``.

    Measures the first rows of ``df`` (:mod:`sparkdl_comm.job.arrow_batches`).

    :param expressions: columns returned by :func:`training_columns`, together with ``rows``.
    """
    features = params.feature_columns()
    measured = measure_columns(df, list(dict.fromkeys([*features, *params.label_columns()])), as_stored=features)
    columns = {name: expression for (name, _), expression in zip(rows.named_fields(), expressions, strict=True)}
    if rows.weight is not None:
        columns["weight"] = _column(rows.weight).cast("double")
    # Spark's partitions depend on its executors, and its shuffles deliver rows in any order. Only the contents of a row are
    # the same in every run. So their hash decides the row's rank, and ranks sort by it. xxhash64 skips nulls, so a dense
    # Vector has the hash of an array.
    contents = list(columns.values())
    columns["id"] = F.xxhash64(*contents)
    indicator, fraction = params.getValidationIndicatorCol(), params.getValidationFraction()
    if indicator is not None:
        columns["validation"] = _column(indicator)
    elif fraction is not None:
        part = F.pmod(F.xxhash64(F.lit(params.getSeed()), *contents), F.lit(_HASH_RANGES))
        columns["validation"] = part < F.lit(fraction * _HASH_RANGES)
    data = df.select(*(expression.alias(name) for name, expression in columns.items()))
    return limit_batches(data, sum(_row_bytes(field, measured[field.name]) for _, field in rows.named_fields()))


def _row_bytes(field: Field, measured: int) -> int:
    """Return the estimated bytes of the column in a row on its way to a rank.

    Rows of different lengths have a margin. That of Vectors is in ``measured``, as only sparse ones need it.
    """
    return measured * (2 if field.collate or field.decode else 1)


def _describe_validation(params: TorchParams) -> str | None:
    """Return the Param that selects the rows for validation, for messages."""
    if params.getValidationIndicatorCol() is not None:
        return f"validationIndicatorCol {params.getValidationIndicatorCol()!r}"
    fraction = params.getValidationFraction()
    return None if fraction is None else f"validationFraction={fraction}"


def feature_inputs(
    df: DataFrame, params: TorchParams, decode: Decode | None, collate: Collate | None
) -> tuple[list[Column], list[Field]]:
    """Return the feature columns and their descriptions. Parameters and errors are those of
    :func:`training_columns`."""
    names = params.feature_columns()
    shapes: Sequence[list[int] | None] = params.getInputShapes() or [None] * len(names)
    types: Sequence[str | None] = params.getInputTypes() or [None] * len(names)
    param = params.feature_param()
    fields = []
    for name, dtype, shape in zip(names, types, shapes, strict=True):
        is_vector = isinstance(_column_type(df, name, param), _VECTORS)
        field = Field(param, name, dtype, None if shape is None else tuple(shape), width=0 if is_vector else None)
        is_encoded = _is_encoded(df, name, param)
        if is_encoded:
            field = replace(field, decode=decode)
        if shape is None and (is_encoded or isinstance(_column_type(df, name, param), ArrayType)):
            field = replace(field, collate=collate)
        fields.append(field)
    if collate is not None and not any(field.collate for field in fields):
        raise InputError(
            f"collate_fn has no column to work on: {param} {', '.join(names)} has no arrays or decoded values without a"
            " shape in inputShapes. Leave collate_fn out"
        )
    for field in fields:
        if field.dtype == "sparse" and field.width is None:
            raise InputError(
                f"inputTypes: 'sparse' is for Vectors; {param} {field.name!r} is"
                f" {_column_type(df, field.name, param).simpleString()}. Give another type, or None"
            )
    return [_feature(df, field) for field in fields], fields


def _feature(df: DataFrame, field: Field) -> Column:
    """Return the column as executors get it: an encoded value, a Vector as a struct, or numbers."""
    column = _column(field.name)
    if field.decode is not None:
        return column
    if field.width is None:
        return to_numbers(df, field)
    vector = F.unwrap_udt(column)
    values = vector["values"] if field.is_wide else vector["values"].cast("array<float>")
    parts = {"size": vector["size"], "indices": vector["indices"], "values": values}
    return F.when(column.isNotNull(), F.struct(*(part.alias(name) for name, part in parts.items())))


def scoring_inputs(
    df: DataFrame, params: TorchParams, decode: Decode | None, collate: Collate | None
) -> tuple[list[Column], list[Field]]:
    """Return the feature columns for a pandas UDF, see :mod:`sparkdl_comm.ml.prediction`, and their descriptions.

    Errors are those of :func:`feature_inputs`.
    """
    expressions, fields = feature_inputs(df, params, decode, collate)
    return [_for_pandas(df, field, column) for column, field in zip(expressions, fields, strict=True)], fields


def known_row_bytes(df: DataFrame, fields: Sequence[Field], module: torch.nn.Module) -> int | None:
    """Return the largest bytes of a row's arrays, Vectors and encoded values, as far as they are known without reading
    rows.

    ``inputShapes`` shows their elements, the metadata of Vectors, or the first layer of a model with one input. Vectors
    count as dense, unless ``inputTypes`` is sparse. An encoded value counts as the float32 numbers that it becomes.

    :return: 0: unknown. None: unknown, and there are binary values.
    """
    _, first = first_layer(module)
    from_layer = first.in_features if len(fields) == 1 and isinstance(first, torch.nn.Linear) else 0
    total, has_unknown_binary = 0, False
    for field in fields:
        (column,) = (each for each in df.schema.fields if each.name == field.name)
        if field.dtype == "sparse" or not isinstance(column.dataType, (*_VECTORS, ArrayType, BinaryType)):
            continue
        from_shape = 0 if field.shape is None else math.prod(field.shape)
        elements = width_from_metadata(column) or from_shape or from_layer
        total += (4 if field.width is None else 8) * elements
        has_unknown_binary |= isinstance(column.dataType, BinaryType) and not elements
    return None if has_unknown_binary and total <= ROW_BYTES_IF_UNKNOWN else total


def _for_pandas(df: DataFrame, field: Field, column: Column) -> Column:
    kind = _column_type(df, field.name, field.param)
    if field.decode is not None or isinstance(kind, _VECTORS):
        return _column(field.name)
    if not isinstance(kind, ArrayType):
        return F.struct(F.coalesce(column, F.lit(0)).alias("value"), column.isNull().alias("null"))
    numbers, may_have_nulls = column, kind.containsNull
    while isinstance(kind.elementType, ArrayType):
        kind = kind.elementType
        numbers, may_have_nulls = F.flatten(numbers), may_have_nulls or kind.containsNull  # null if an inner array is
    if not may_have_nulls:
        return column
    # array_contains returns null if the array has a null and lacks the number. It is fast. exists looks at each element,
    # so it only runs on arrays for which array_contains did not return false.
    contains = F.array_contains(numbers, F.lit(_RARE_NUMBER).cast(_number_type(kind.elementType, field)))
    has_null = F.coalesce(contains & F.exists(numbers, lambda element: element.isNull()), F.lit(True))
    return F.when(~has_null, column)


def _is_encoded(df: DataFrame, name: str, param: str) -> bool:
    return isinstance(_column_type(df, name, param), (BinaryType, StringType))


def to_numbers(df: DataFrame, field: Field) -> Column:
    """Return a column of numbers, ready for Arrow; null stays null.

    :raises InputError: the column is missing or its type is not accepted. The message names the Param, column and type.
    """
    kind, column = _column_type(df, field.name, field.param), _column(field.name)
    if isinstance(kind, _VECTORS):
        # vector_to_array throws on null
        return F.when(column.isNotNull(), vector_to_array(column, "float64" if field.is_wide else "float32"))
    element = _element_type(kind)
    if isinstance(element, (NumericType, BooleanType)):
        return column.cast(_nested_type(kind, _number_type(element, field)))
    raise InputError(
        f"{field.param}: column {field.name!r} is {kind.simpleString()}; accepted are numbers, arrays of numbers (nested"
        " too), Vectors (as VectorAssembler makes them) and, as features, binary or text with decode=, a function from a"
        " value to an array"
    )


def _number_type(element: DataType, field: Field) -> str:
    """Return the SQL type in which numbers of type ``element`` go to Arrow."""
    if isinstance(element, BooleanType):
        return "tinyint"
    if isinstance(element, IntegralType):
        return element.simpleString()
    # double for integer tensors: float32 would change a class such as 16777217.0
    return "double" if field.is_wide else "float"


def _label_field(df: DataFrame, name: str, param: str, target_type: TargetType) -> Field:
    kind = _column_type(df, name, param)
    integral = isinstance(_element_type(kind), (IntegralType, BooleanType))
    scalar = not isinstance(kind, (ArrayType, *_VECTORS))
    return Field(param, name, target_type(integral, scalar), () if scalar else None)


def _element_type(kind: DataType) -> DataType:
    while isinstance(kind, ArrayType):
        kind = kind.elementType
    return kind


def _nested_type(kind: DataType, element: str) -> str:
    return f"array<{_nested_type(kind.elementType, element)}>" if isinstance(kind, ArrayType) else element


def _column_type(df: DataFrame, name: str, param: str) -> DataType:
    types = [field.dataType for field in df.schema.fields if field.name == name]
    if not types:
        raise InputError(f"{param}: there is no column {name!r}; the columns are {', '.join(df.columns)}")
    if len(types) > 1:
        raise InputError(f"{param}: there are {len(types)} columns named {name!r}; rename or drop one")
    return types[0]


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")
