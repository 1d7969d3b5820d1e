"""A trained model as a pyspark.ml Transformer."""

from __future__ import annotations

import copy
from typing import Any

import torch
from pyspark.ml import Model
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from .data import columns
from .errors import InputError
from .params import TorchParams
from .persistence import TorchModelReader, TorchModelWriter
from .predict import PREDICTION, Predictor, Shipped
from .session import is_classic

_NATIVE = (ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType)


class TorchModel(Model, TorchParams, MLReadable["TorchModel"], MLWritable):
    """What :class:`~sparkdl_comm.estimator.TorchEstimator` returns: has its uid and Params.

    ``module``: the trained ``torch.nn.Module``, on the CPU, in eval mode. ``summary``: the run in numbers
    (see
    :func:`sparkdl_comm.train.report.summarize`), None for a model that was not trained here.
        ``classification``: the
    prediction is the index of the largest output. ``output_shape``: shape of the output for one row, None if
    not known; a model that is no classifier and gives more than one value per row predicts ``array<float>``.

    Copies share ``module``; nothing here changes it.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        classification: bool,
        summary: dict[str, Any] | None = None,
        output_shape: list[int] | None = None,
        factory: str | None = None,
    ) -> None:
        """
        :param factory: ``package.module:qualname`` of what makes such a module without arguments, for
            :meth:`load`.
        """
        super().__init__()
        self.module = module
        self.classification = classification
        self.summary = summary
        self.output_shape = output_shape
        self.factory = factory

    def _transform(self, dataset: DataFrame) -> DataFrame:
        """``dataset`` with the prediction added; see ``transform``. All other columns stay as they are.

        The prediction is a double (class index, or the value), or ``array<float>``: see the class. Lazy, as
        everything in Spark: null features are found (InputError) when the result is used.

        :raises InputError: the features' column is missing or of a type that is not accepted, or the
            prediction's column is already there.
        """
        self._check_params()
        features, prediction = self.getFeaturesCol(), self.getPredictionCol()
        expression = columns.features(dataset, features)
        if prediction in dataset.columns:
            raise InputError(f"predictionCol: there already is a column {prediction!r}; choose another or drop it")
        native = _is_native(dataset.schema[features].dataType)
        vector = not self.classification and _size(self.output_shape) > 1
        kind = ArrayType(FloatType(), False) if vector else DoubleType()
        predictor = Predictor(
            module=dataset.sparkSession.sparkContext.broadcast(Shipped(self.module))
            if is_classic(dataset.sparkSession)
            else self.module,
            features=dataset.columns.index(features) if native else len(dataset.columns),
            columns=len(dataset.columns),
            batch_size=self.getBatchSize(),
            classification=self.classification,
            vector=vector,
            device=self.getDevice(),
        )
        rows = dataset if native else dataset.select("*", expression)
        # mapInArrow and Arrow look columns up by name, and stumble over dots and duplicates
        rows = rows.toDF(*(f"c{index}" for index in range(len(rows.columns))))
        fields = [*rows.schema.fields[: len(dataset.columns)], StructField(PREDICTION, kind)]
        return rows.mapInArrow(predictor, StructType(fields)).toDF(*dataset.columns, prediction)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per epoch, ``epoch`` counting from 1; empty for a model that was not trained here."""
        return list((self.summary or {}).get("history", ()))

    def to_torch(self) -> torch.nn.Module:
        """A copy of ``module``, on the CPU, in eval mode: the caller's own to change."""
        return copy.deepcopy(self.module).eval()

    def write(self) -> TorchModelWriter:
        return TorchModelWriter(self)

    @classmethod
    def read(cls) -> TorchModelReader:
        return TorchModelReader(cls)

    @classmethod
    def load(cls, path: str, model: Any = None) -> TorchModel:
        """The model saved at ``path``, any path that Spark can read.

        :param model: the module, or its class or factory, to load the weights into. Needed when the module
            given to the estimator was not an importable class or function.
        :raises PersistenceError: nothing there, or it cannot be read, or ``model`` is needed.
        :raises ModelError: ``model`` is another model; names the tensors that differ.
        """
        return TorchModelReader(cls, model).load(path)


def _is_native(kind: DataType) -> bool:
    """Whether Arrow delivers this column as numbers that need no conversion by Spark."""
    return isinstance(kind.elementType if isinstance(kind, ArrayType) else kind, _NATIVE)


def _size(shape: list[int] | None) -> int:
    size = 1
    for length in shape or ():
        size *= length
    return size
