"""The columns of a DataFrame that a model reads: checked against its schema, and made ready for Arrow.

Accepted are, as features, an array of numbers, an ML (or MLlib) Vector or a number; as label, a number. They
leave Spark as float arrays or floats, labels as longs if they are of an integral type, else as doubles.
"""

from __future__ import annotations

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, IntegralType, NumericType

from ..errors import InputError


def features(df: DataFrame, name: str, param: str = "featuresCol") -> Column:
    """The features as ``array<float>``, or ``float`` where the column is a number; null stays null.

    :raises InputError: no such column, or of a type that is not accepted; names the Param, column and type.
    """
    kind = _type(df, name, param)
    if isinstance(kind, (VectorUDT, OldVectorUDT)):
        # vector_to_array throws on null
        return F.when(_column(name).isNotNull(), vector_to_array(_column(name), "float32"))
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, NumericType):
        return _column(name).cast("array<float>")
    if isinstance(kind, NumericType):
        return _column(name).cast("float")
    raise InputError(
        f"{param}: column {name!r} is {kind.simpleString()}; accepted are an array of numbers, a Vector (as "
        "VectorAssembler makes it) and a number"
    )


def label(df: DataFrame, name: str, param: str = "labelCol") -> tuple[Column, bool]:
    """The labels, and whether their type is integral: then they are ``long``, else ``double``.

    :raises InputError: as for :func:`features`.
    """
    kind = _type(df, name, param)
    if not isinstance(kind, NumericType):
        raise InputError(f"{param}: column {name!r} is {kind.simpleString()}; accepted are numbers")
    integral = isinstance(kind, IntegralType)
    # double, not float: a class such as 16777217.0 must not become another one
    return _column(name).cast("long" if integral else "double"), integral


def _type(df: DataFrame, name: str, param: str) -> DataType:
    found = [field.dataType for field in df.schema.fields if field.name == name]
    if not found:
        raise InputError(f"{param}: there is no column {name!r}; the columns are {', '.join(df.columns)}")
    if len(found) > 1:
        raise InputError(f"{param}: there are {len(found)} columns named {name!r}; rename or drop one")
    return found[0]


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")
