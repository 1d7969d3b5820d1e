"""The pyspark.ml Transformer that a fit returns: a trained model."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import torch
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import pandas_udf
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, StructField, StructType

from sparkdl_comm.data.fields import Collate, Decode, for_model
from sparkdl_comm.errors import InputError, ModelError, PersistenceError
from sparkdl_comm.job.arrow_batches import warn_about_wide_rows
from sparkdl_comm.job.broadcasts import broadcast_module
from sparkdl_comm.job.import_check import ImportCheck
from sparkdl_comm.job.session import active_session, session_of, use_driver_python
from sparkdl_comm.job.summary import Summary
from sparkdl_comm.ml import columns
from sparkdl_comm.ml.params import TorchParams
from sparkdl_comm.ml.persistence import FolderReader, FolderWriter, session_storage
from sparkdl_comm.ml.prediction import Predictor
from sparkdl_comm.ml.scoring import PREDICTION, Activation, Kind, Scoring, columns_of, kind_of, members_of
from sparkdl_comm.ml.weights import read_weights, write_weights
from sparkdl_comm.report.timeline import Timeline
from sparkdl_comm.space.module_state import deep_copy
from sparkdl_comm.train.diagnosis import OutputShape

#: Example arguments of a module: one tensor, or several.
Example: TypeAlias = torch.Tensor | Sequence[torch.Tensor]


class TorchModel(Model, TorchParams, MLReadable["TorchModel"], MLWritable):
    """Transformer that :class:`~sparkdl_comm.ml.estimator.TorchEstimator` returns, with the estimator's uid and Params.

    ``module``: the trained ``torch.nn.Module``, on the CPU, in eval mode. ``summary``: numbers of the run (see
    :func:`sparkdl_comm.job.summary.summarize`); None for a model trained elsewhere. ``decode``: function from a value
    of a binary or text feature column to an array; None: there is no such column. ``collate_fn``: makes a batch of rows
    of different lengths; None: all rows have one length.

    Three attributes decide the columns that ``transform`` adds; see the table of :mod:`sparkdl_comm.ml.scoring`.
    ``classification``: True if labels were classes. ``output_shape``: shape of the output for one row, a dict by name
    if there are several outputs, or None if unknown. ``activation``: function from outputs to probabilities (softmax,
    exp, sigmoid or identity), or None.

    Copies share ``module``; no method changes it.
    """

    #: Module name in saved pipelines, independent of the file's place.
    __module__ = "sparkdl_comm"

    def __init__(
        self,
        module: torch.nn.Module,
        classification: bool,
        summary: dict[str, Any] | None = None,
        output_shape: OutputShape | None = None,
        factory: Callable[[], torch.nn.Module] | None = None,
        activation: Activation | None = None,
        decode: Decode | None = None,
        collate_fn: Collate | None = None,
    ) -> None:
        """:param factory: class or function that makes such a module. :meth:`load` imports it by name."""
        super().__init__()
        self.module = module
        self.classification = classification
        self.summary = summary
        self.output_shape = output_shape
        self.factory = factory
        self.activation = activation
        self.decode = decode
        self.collate_fn = collate_fn

    def _transform(self, dataset: DataFrame) -> DataFrame:
        """Return ``dataset`` with the predictions as new columns; see ``transform``. All other columns stay as they
        are.

        A classifier adds ``rawPredictionCol`` and ``probabilityCol``, which are ML Vectors, and ``predictionCol``, the
        class as a double. Any other model only adds ``predictionCol``: a double, or ``array<float>`` for several values
        per row, or a struct of these for several output tensors. A name of "" leaves a column out.

        The result is lazy, so null features raise InputError only when it is used. ``dataset`` may be a stream. Only
        the features go to Python, unused columns are not read, and filters on the others run first. Executors decode
        and compute ``predictBatchSize`` rows at a time. Spark 3.5 sends them Arrow batches of
        ``spark.sql.execution.arrow.maxRecordsPerBatch`` rows (10,000). Set it lower for wide rows. The session in which
        the result is used decides, so ``transform`` cannot set it. It warns of arrays, Vectors and encoded values if
        it knows that they are wide, and of binary columns whose size it does not know.

        :raises InputError: a feature column is missing or its type is not accepted, or a column to add already exists.
        :raises ModelError: ``activation`` is not a known function.
        """
        spark = session_of(dataset)
        use_driver_python(spark)
        self._check_params()
        kind = kind_of(self.classification, self.activation, self.output_shape)
        members = members_of(self.output_shape)
        added = self._columns_to_add(columns_of(kind, self.activation), dataset)
        if not added:
            return dataset
        expressions, fields = columns.scoring_inputs(dataset, self, self.decode, self.collate_fn)
        warn_about_wide_rows(spark, columns.known_row_bytes(dataset, fields, self.module))
        predictor = Predictor(
            module=broadcast_module(spark, self.module, self.factory),
            features=for_model(tuple(fields), self.module),
            batch_size=self.getPredictBatchSize(),
            scoring=Scoring(kind, self.activation, tuple(added), members),
            device=self.getDevice(),
        )
        predicted = [_type_of(part) for part in members.values()] or [_type_of(kind)]
        types = [of for name in added for of in (predicted if name == PREDICTION else [ArrayType(DoubleType(), False)])]
        inputs = [f"sparkdl input {index}" for index in range(len(fields))]
        outputs = [f"sparkdl output {index}" for index in range(len(types))]
        # With a UDF, the optimizer can drop columns and push filters below it. The generator (inline) keeps filters on
        # predictions from calling the model a second time. The inputs get a separate projection because Spark 4.2 refuses
        # a UDF next to Vectors that come straight from a columnar file.
        checked = ImportCheck(predictor.predict, is_rank=False)

        def predict(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.DataFrame]:  # pandas_udf reads the types
            frames: Iterator[pd.DataFrame] = checked(batches)
            return frames

        score = pandas_udf(predict, StructType(list(map(StructField, outputs, types))))  # type: ignore[call-overload]
        rows = dataset.select("*", *(column.alias(name) for column, name in zip(expressions, inputs, strict=True)))
        scored = rows.select("*", F.inline(F.array(score(*inputs))).alias(*outputs))
        return scored.select("*", *_columns(added, list(members), outputs)).drop(*inputs, *outputs)

    def _columns_to_add(self, given: Iterable[str], dataset: DataFrame) -> dict[str, str]:
        """Return the names of the columns to add to ``dataset``, by column, for the columns ``given`` by the model."""
        added = {column: self.getOrDefault(f"{column}Col") for column in given}
        added = {column: name for column, name in added.items() if name}
        for column, name in added.items():
            if name in dataset.columns or list(added.values()).count(name) > 1:
                raise InputError(f"{column}Col: there already is a column {name!r}; choose another or drop it")
        return added

    @property
    def history(self) -> list[dict[str, Any]]:
        """Metrics by epoch: one row each, with ``epoch`` from 1. Empty for a model trained elsewhere."""
        return list((self.summary or {}).get("history", ()))

    def timeline(self) -> Timeline:
        """Return the trace of all ranks in the last iterations of the run: ``.save("trace.json")`` for Perfetto,
        ``.plot()``.

        :raises InputError: no iterations were traced.
        """
        reports = (self.summary or {}).get("timeline")
        if not reports:
            raise InputError(
                "no iterations were traced. Set spark.sparkdl.comm.timeline to the number of last iterations to trace,"
                " then fit"
            )
        return Timeline(reports)

    def to_torch(self) -> torch.nn.Module:
        """Return a copy of ``module``, on the CPU, in eval mode. The caller may change it."""
        return deep_copy(self.module).eval()

    def export_torchscript(self, path: str, example: Example | None = None, overwrite: bool = False) -> None:
        """Write the module as TorchScript, for ``torch.jit.load`` in Python or C++, to any path that Spark can write.

        :param example: input to trace the module with (``torch.jit.trace``): a tensor ``[rows, …]``, or a tuple of them
            for a module with several inputs. None: compile the module's code (``torch.jit.script``).
        :raises PersistenceError: ``path`` exists and ``overwrite`` is false, or it cannot be written.
        :raises ModelError: torch cannot export this module.
        """
        write = functools.partial(torchscript, self.to_torch(), None if example is None else _inputs(example))
        put(active_session(), path, write, overwrite)

    def export_onnx(self, path: str, example: Example, overwrite: bool = False, **options: Any) -> None:
        """Write the module as ONNX, for any number of rows, to any path that Spark can write.

        Its inputs are named as the feature columns. Large weights go to a second file, ``<path>.data``.

        :param example: as in :meth:`export_torchscript`.
        :param options: for ``torch.onnx.export``, such as ``opset_version``.
        :raises PersistenceError: ``path`` exists and ``overwrite`` is false, or it cannot be written.
        :raises ModelError: torch cannot export this module, or ``sparkdl_comm[onnx]`` is not installed.
        """
        write = functools.partial(onnx, self.to_torch(), _inputs(example), self.feature_columns(), options)
        put(active_session(), path, write, overwrite)

    def write(self) -> TorchModelWriter:
        """Return the writer of this model. ``write().overwrite().save(path)`` replaces what is at ``path``."""
        return TorchModelWriter(self)

    @classmethod
    def read(cls) -> TorchModelReader:
        """Return the reader for Spark's pipelines. Otherwise use :meth:`load`."""
        return TorchModelReader(cls, {})

    @classmethod
    def load(
        cls, path: str, model: Any = None, decode: Decode | None = None, collate_fn: Collate | None = None
    ) -> TorchModel:
        """Load the model saved at ``path``, any path that Spark can read.

        :param model: the module, or its class or factory, to load the weights into. Required unless the estimator got
            an importable class or function, or a ``functools.partial`` of one.
        :param decode: required if the model was trained with a ``decode`` that cannot be imported by name.
        :param collate_fn: required if the model was trained with a ``collate_fn`` that cannot be imported by name.
        :raises PersistenceError: there is nothing at ``path``, it cannot be read, or one of the parameters is required.
        :raises ModelError: ``model`` is another model. The message names the tensors that differ.
        """
        given = {"model": model, "decode": decode, "collate_fn": collate_fn}
        return TorchModelReader(cls, {name: value for name, value in given.items() if value is not None}).load(path)


def _inputs(example: Example) -> tuple[torch.Tensor, ...]:
    return (example,) if isinstance(example, torch.Tensor) else tuple(example)


def _columns(added: dict[str, str], members: list[str], outputs: list[str]) -> list[Column]:
    """Return the columns to add: a struct of the ``members``, or one of the ``outputs`` for each of ``added``."""
    columns, left = [], iter(map(F.col, outputs))
    for column, name in added.items():
        if column != PREDICTION:
            result = array_to_vector(next(left))
        else:
            result = F.struct(*(next(left).alias(member) for member in members)) if members else next(left)
        columns.append(result.alias(name))
    return columns


def _type_of(kind: Kind) -> DataType:
    """Return the SQL type of a prediction."""
    return ArrayType(FloatType(), False) if kind == "vector" else DoubleType()


class TorchModelWriter(FolderWriter):
    """Writer of a :class:`~sparkdl_comm.ml.model.TorchModel`."""

    _instance: TorchModel

    def write_to(self, folder: Path) -> dict[str, str]:
        model = self._instance
        write_weights(model.module, folder)
        return self.write_metadata(
            folder,
            {
                "model": model.module if model.factory is None else model.factory,
                "decode": model.decode,
                "collate_fn": model.collate_fn,
            },
            classification=model.classification,
            activation=model.activation,
            outputShape=model.output_shape,
            summary=model.summary,
        )


class TorchModelReader(FolderReader["TorchModel"]):
    """Reader of a :class:`~sparkdl_comm.ml.model.TorchModel`."""

    def read_from(self, folder: Path, path: str) -> TorchModel:
        metadata = self.read_metadata(folder, path)
        components = self.rebuild_components(metadata, folder, path)
        factory = components["model"]
        module = read_weights(factory, folder, path).eval()
        model = self._cls(
            module,
            metadata["classification"],
            None if metadata["summary"] is None else Summary(metadata["summary"]),
            metadata["outputShape"],
            None if isinstance(factory, torch.nn.Module) else factory,
            metadata["activation"],
            components["decode"],
            components["collate_fn"],
        )
        return self.restore(model, metadata)


def torchscript(module: torch.nn.Module, inputs: Sequence[torch.Tensor] | None, file: Path) -> None:
    """Write ``module`` as TorchScript to ``file``: compiled, or traced with ``inputs`` if they are given.

    :raises ModelError: torch cannot export it.
    """
    try:
        with torch.inference_mode():
            script = torch.jit.script(module) if inputs is None else torch.jit.trace(module, tuple(inputs))  # type: ignore[no-untyped-call]
    except Exception as error:  # the compiler and the module may raise anything
        way = "torch.jit.script" if inputs is None else "torch.jit.trace"
        other = "give an example of the input to trace it instead" if inputs is None else "is the example right?"
        raise ModelError(f"{way} cannot export {type(module).__name__}: {error}; {other}") from error
    torch.jit.save(script, str(file))


def onnx(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], names: Sequence[str], options: dict[str, Any], file: Path
) -> None:
    """Write ``module`` as ONNX for any number of rows to ``file``. Large weights go to a second file next to it.

    :param names: of the inputs.
    :param options: keyword arguments of ``torch.onnx.export``.
    :raises ModelError: a package is missing, or torch cannot export it.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"export to ONNX needs {' and '.join(missing)}: pip install 'sparkdl_comm[onnx]'")
    # torch.export would take an example's single row for a fixed number of rows
    example = tuple(torch.cat([tensor, tensor]) if len(tensor) == 1 else tensor for tensor in inputs)
    rows = torch.export.Dim("rows")
    defaults = {"input_names": list(names), "dynamic_shapes": tuple({0: rows} for _ in example), "verbose": False}
    try:
        torch.onnx.export(module, example, str(file), dynamo=True, **{**defaults, **options})
    except Exception as error:  # the exporter and the module may raise anything
        raise ModelError(f"torch.onnx.export cannot export {type(module).__name__}: {error}") from error


def put(spark: SparkSession, path: str, write: Callable[[Path], None], overwrite: bool) -> None:
    """Let ``write`` write files to a local directory, and copy them to ``path``, any path that Spark can write.

    :raises PersistenceError: ``path`` exists and ``overwrite`` is false, or it cannot be written.
    """
    name = path.rpartition("/")[2]
    with tempfile.TemporaryDirectory(prefix="sparkdl-export-") as local, session_storage(spark) as storage:
        if not overwrite and storage.exists(path):
            raise PersistenceError(f"{path} already exists; to replace it, give overwrite=True")
        write(Path(local) / name)
        for file in sorted(Path(local).iterdir(), key=lambda file: file.name == name):  # the file at path comes last
            storage.replace(path.removesuffix(name) + file.name, functools.partial(shutil.move, file), overwrite=True)
