"""Params of the estimator and the model, named as pyspark.ml and xgboost.spark name them.

Each Param is declared once, in a table. Its accessors, its keyword in snake_case and the stub ``params.pyi`` are made from
the table.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasMaxIter,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasSeed,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from sparkdl_comm.conf.forms import snake_case
from sparkdl_comm.data.fields import TYPES
from sparkdl_comm.errors import ConfError

#: Names in other frameworks, by ours. The first of ours that the instance has is suggested.
_FOREIGN_NAMES = {
    ("maxIter",): "epochs num_epochs n_epochs max_epochs iterations",
    ("learningRate", "optimizer"): "lr eta learning_rate",
    ("optimizer",): "learningRate weight_decay momentum",
    ("batchSize",): "batch bs",
    ("num_workers",): "workers numWorkers n_workers num_processes num_proc world_size",
    ("featuresCol",): "features",
    ("featuresCols",): "feature_cols",
    ("labelCol",): "label target",
    ("loss",): "loss_fn criterion",
    ("model",): "net module network",
    ("lr_scheduler",): "scheduler",
    ("seed",): "random_state random_seed",
    ("device",): "use_gpu useGpu gpu",
    ("maxGradNorm",): "clip_grad_norm gradient_clip_val",
    ("accumulationSteps",): "gradient_accumulation_steps accumulate_grad_batches",
    ("validationFraction",): "validation_split",
    ("earlyStoppingPatience",): "patience",
    ("collate_fn",): "collate collateFn",
    ("resume",): "resume_from_checkpoint",
}
_OUR_NAMES = {foreign: ours for ours, names in _FOREIGN_NAMES.items() for foreign in names.split()}

_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int": TypeConverters.toInt,
    "float": TypeConverters.toFloat,
    "str": TypeConverters.toString,
    "bool": TypeConverters.toBoolean,
    "list[str]": TypeConverters.toListString,
}


@dataclass(frozen=True)
class Declaration:
    """Declaration of a Param. ``type``: of its value, as in a stub. ``default`` None: the Param is not set.

    ``converter``: replaces the converter of the type. ``minimum``: the least value allowed. ``positive``: the value must be
    more than 0, and finite. ``choices``: the values allowed.
    """

    name: str
    type: str
    default: Any
    doc: str
    converter: Callable[[Any], Any] | None = None
    minimum: int | None = None
    positive: bool = False
    choices: tuple[str, ...] = ()

    @property
    def accessor(self) -> str:
        """Name of the Param in its getter and setter, such as ``NumWorkers``."""
        return accessor(self.name)

    def check(self, value: Any) -> None:
        """Check a value that is set.

        :raises ConfError: the value is not allowed. The message names Param, value and limit.
        """
        if self.minimum is not None and not value >= self.minimum:
            raise ConfError(f"{self.name}={value}: must be at least {self.minimum}")
        if self.positive and not (value > 0 and math.isfinite(value)):
            raise ConfError(f"{self.name}={value}: must be more than 0, and finite")
        if self.choices and value not in self.choices:
            raise ConfError(f"{self.name}={value!r}: must be {', '.join(self.choices[:-1])} or {self.choices[-1]}")


def _shapes(value: Any) -> list[list[int] | None]:
    """Convert to a list of shapes. A single shape such as ``[1, 28, 28]`` is allowed."""
    shapes = TypeConverters.toList(value)
    if shapes and all(isinstance(length, int) for length in shapes):
        shapes = [shapes]
    return [None if shape is None else TypeConverters.toListInt(shape) for shape in shapes]


def _types(value: Any) -> list[str | None]:
    """Convert to a list of types. A single type such as ``"int64"`` is allowed."""
    types = [value] if isinstance(value, str) else TypeConverters.toList(value)
    return [None if dtype is None else TypeConverters.toString(dtype) for dtype in types]


#: Params that pyspark.ml.param.shared declares, with this package's defaults.
SHARED = (
    Declaration("featuresCol", "str", "features", "features column name"),
    Declaration("labelCol", "str", "label", "label column name"),
    Declaration("weightCol", "str", None, "weight column name, such as weight; not set: all rows have the same weight"),
    Declaration("predictionCol", "str", "prediction", "prediction column name"),
    Declaration("rawPredictionCol", "str", "rawPrediction", "raw prediction column name"),
    Declaration("probabilityCol", "str", "probability", "column name of the classes' probabilities"),
    Declaration(
        "validationIndicatorCol",
        "str",
        None,
        "bool column that marks rows for validation, such as is_validation; not set: none",
    ),
    Declaration("maxIter", "int", 1, "number of epochs", minimum=1),
    Declaration("seed", "int", 0, "random seed"),
)

#: Params of this package.
OWN = (
    # columns
    Declaration(
        "featuresCols",
        "list[str]",
        None,
        "several feature columns, instead of featuresCol, such as ['user', 'movie']; the model gets one tensor for each",
    ),
    Declaration(
        "labelCols",
        "list[str]",
        None,
        "several label columns, instead of labelCol, such as ['rating', 'clicked']; the loss gets a tuple of tensors",
    ),
    Declaration(
        "inputShapes",
        "list[list[int] | None]",
        None,
        "shape of one row for each feature column, such as [[1, 28, 28]]; None: the column's own shape",
        _shapes,
    ),
    Declaration(
        "inputTypes",
        "list[str | None]",
        None,
        f"type of the tensor for each feature column, such as ['int64'], one of {', '.join(TYPES)}; None: float32,"
        " but int64 for integers if the model has an Embedding; sparse: torch.sparse_coo of float32, for Vectors",
        _types,
    ),
    # validation
    Declaration(
        "validationFraction",
        "float",
        None,
        "approximate share of the rows for validation, such as 0.1, instead of validationIndicatorCol; selected by a hash"
        " of the row and the seed, so equal rows stay together. Not set: none",
    ),
    # training
    Declaration(
        "batchSize", "int", 32, "rows per batch over all ranks; a step uses accumulationSteps batches", minimum=1
    ),
    # the optimizer step
    Declaration(
        "learningRate",
        "float",
        None,
        "learning rate that replaces the optimizer's lr, such as 0.01; groups of param_groups with an lr keep theirs",
        positive=True,
    ),
    Declaration(
        "accumulationSteps",
        "int",
        1,
        "number of batches per optimizer step, which uses batchSize x accumulationSteps rows",
        minimum=1,
    ),
    Declaration(
        "maxGradNorm",
        "float",
        None,
        "maximum L2 norm of the gradient over all parameters, such as 1.0; larger gradients are scaled down. Not set: no"
        " limit",
        positive=True,
    ),
    Declaration(
        "precision",
        "str",
        "fp32",
        "precision of forward and loss with torch.autocast: fp32 (off), bf16 or fp16 (with dynamic loss scaling)",
        choices=("fp32", "bf16", "fp16"),
    ),
    Declaration(
        "lrSchedulerInterval",
        "str",
        None,
        "when lr_scheduler steps: epoch (at the end of each epoch) or step (after each optimizer step). Not set: step for"
        " OneCycleLR, CyclicLR and functions that take total_steps or num_training_steps,"
        " epoch for others",
        choices=("epoch", "step"),
    ),
    # early stopping
    Declaration(
        "earlyStoppingPatience",
        "int",
        None,
        "stop after this many epochs without improvement of the monitored value, such as 3; not set: never",
        minimum=1,
    ),
    Declaration(
        "earlyStoppingMonitor",
        "str",
        "val_loss",
        "the value to watch: val_loss, loss or a metric's name; ReduceLROnPlateau watches it too",
    ),
    Declaration(
        "earlyStoppingMinDelta", "float", 0.0, "minimum change that counts as an improvement, exclusive", minimum=0
    ),
    Declaration("earlyStoppingMode", "str", "min", "direction of improvement: min or max", choices=("min", "max")),
    Declaration(
        "restoreBestModel",
        "bool",
        True,
        "with early stopping, return the parameters of the best epoch; each rank keeps a copy of them",
    ),
    # checkpoints
    Declaration(
        "checkpointDir",
        "str",
        None,
        "directory for checkpoints, any path that Hadoop reaches, such as hdfs:///checkpoints/digits. All executors"
        " must share a local one. Not set: none",
    ),
    Declaration(
        "checkpointInterval",
        "int",
        None,
        "steps between checkpoints, such as 500; with strategy fabric, updates of the model, rounded up to the end"
        " of an epoch",
        minimum=1,
    ),
    Declaration("checkpointSeconds", "float", None, "seconds between checkpoints, such as 600", positive=True),
    Declaration("checkpointKeep", "int", 2, "number of newest checkpoints to keep", minimum=1),
    Declaration("resume", "bool", False, "continue from the newest checkpoint in checkpointDir, if there is one"),
    # prediction: small enough that the activations of a small CNN stay in the CPU's cache
    Declaration("predictBatchSize", "int", 256, "rows per forward pass in transform", minimum=1),
    # the cluster
    Declaration(
        "num_workers", "int", None, "number of ranks, such as 4; not set: one per slot that has registered", minimum=1
    ),
    Declaration("device", "str", "cpu", "cpu or cuda", choices=("cpu", "cuda")),
    Declaration(
        "strategy",
        "str",
        None,
        "how gradients and parameters travel, such as ring; not set: spark.sparkdl.comm.strategy, and without that ps"
        " where the plugin is loaded, the model has two million parameters or more, and ps accepts optimizer, compression"
        " and layers, else ring",
    ),
    Declaration(
        "compression",
        "str",
        None,
        "which elements of gradients travel, such as exact:0.01; not set: spark.sparkdl.comm.compression",
    ),
)

#: Components of an estimator, with their types: attributes that are not Params, because Params must be JSON.
COMPONENTS = {
    "model": "Any",
    "loss": "str | Callable[..., Any] | None",
    "optimizer": "Callable[..., Any] | None",
    "param_groups": "Callable[..., list[dict[str, Any]]] | None",
    "lr_scheduler": "Callable[..., Any] | None",
    "metrics": "Mapping[str, Callable[..., Any]] | None",
    "callbacks": "Sequence[Callback] | None",
    "decode": "Callable[[Any], Any] | None",
    "collate_fn": "Callable[[list[torch.Tensor]], Any] | None",
    "augment": "Callable[..., Any] | None",
    "loggers": "Sequence[RunLogger] | None",
}

T = TypeVar("T", bound=type)


def accessor(name: str) -> str:
    """Return ``NumWorkers`` for ``num_workers``, as in ``getNumWorkers``."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _with_accessors(cls: T) -> T:
    """Add to a class the Params of the tables, and the getters and setters that it does not define itself."""
    for each in OWN:
        setattr(cls, each.name, Param(Params._dummy(), each.name, each.doc, each.converter or _CONVERTERS[each.type]))
    for each in (*SHARED, *OWN):
        _add_accessors(cls, each.accessor, _getter(each), _setter(each))
    return cls


def _with_components(cls: T) -> T:
    """Add to a class the attributes :data:`COMPONENTS`, with getters and setters."""

    for name in COMPONENTS:
        setattr(cls, name, None)
        _add_accessors(cls, accessor(name), *_component_accessors(name))
    return cls


def _component_accessors(name: str) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    def get(self: Any) -> Any:
        return getattr(self, name)

    def set_value(self: Any, value: Any) -> Any:
        setattr(self, name, value)
        return self

    get.__doc__, set_value.__doc__ = f"Return ``{name}``.", f"Set ``{name}``."
    return get, set_value


def _add_accessors(cls: type, name: str, get: Callable[[Any], Any], set_value: Callable[[Any, Any], Any]) -> None:
    """Add ``get{name}`` and ``set{name}`` to a class that does not define them itself."""
    for attribute, function in ((f"get{name}", get), (f"set{name}", set_value)):
        if attribute not in vars(cls):
            function.__name__, function.__qualname__ = attribute, f"{cls.__name__}.{attribute}"
            setattr(cls, attribute, function)


def _getter(declared: Declaration) -> Callable[[Any], Any]:
    def get(self: Any) -> Any:
        return self.getOrDefault(declared.name)

    get.__doc__ = f"Return ``{declared.name}``: {declared.doc}."
    return get


def _setter(declared: Declaration) -> Callable[[Any, Any], Any]:
    def set_value(self: Any, value: Any) -> Any:
        return self._set(**{declared.name: value})

    set_value.__doc__ = f"Set ``{declared.name}``: {declared.doc}."
    return set_value


@_with_accessors
class TorchParams(
    HasFeaturesCol,
    HasLabelCol,
    HasWeightCol,
    HasPredictionCol,
    HasRawPredictionCol,
    HasProbabilityCol,
    HasValidationIndicatorCol,
    HasMaxIter,
    HasSeed,
):
    """Params of estimator and model. A Param set here overrides the session's conf.

    Every Param has ``getX`` and ``setX``, and a snake_case spelling as a keyword. ``transform`` adds ``predictionCol`` and,
    for a classifier, ``rawPredictionCol`` and ``probabilityCol``. It adds no column named "".
    """

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**{each.name: each.default for each in (*SHARED, *OWN)})

    def _set_keywords(self, keywords: dict[str, Any]) -> None:
        """Set Params by either spelling. ``featuresCol`` and ``labelCol`` take a list, too. None clears a Param.

        :raises TypeError: a keyword is unknown or given twice, or a value has the wrong type.
        """
        names = {snake_case(param.name): param.name for param in self.params}
        plural = {"featuresCol": "featuresCols", "labelCol": "labelCols"}
        values: dict[str, Any] = {}
        for keyword, value in keywords.items():
            name = names.get(keyword, keyword)
            if isinstance(value, (list, tuple)):
                name = plural.get(name, name)
            if not self.hasParam(name):
                nearest = self._suggest(keyword, sorted({*names, *names.values()}))
                raise TypeError(f"{type(self).__name__}: unknown parameter {keyword!r}; did you mean {nearest!r}?")
            if name in values:
                raise TypeError(f"{type(self).__name__}: {name} given twice, as {name} and as {snake_case(name)}")
            values[name] = value
        for name in [name for name, value in values.items() if value is None]:
            self.clear(self.getParam(name))
        self._set(**{name: value for name, value in values.items() if value is not None})

    def _suggest(self, keyword: str, known: list[str]) -> str:
        """Return the parameter or attribute that an unknown keyword most likely means."""
        for name in _OUR_NAMES.get(keyword, ()):
            if self.hasParam(name) or hasattr(self, name):
                return name
        return difflib.get_close_matches(keyword, known, n=1, cutoff=0.0)[0]

    def _check_params(self) -> None:
        """Check the values of all Params.

        :raises ConfError: a value cannot be used. The message names Param, value and limit.
        """
        for declared in (*SHARED, *OWN):
            value = self.getOrDefault(declared.name)
            if value is not None:
                declared.check(value)
        self._check_columns()
        fraction, column = self.getValidationFraction(), self.getValidationIndicatorCol()
        if fraction is not None and not 0 < fraction < 1:
            raise ConfError(f"validationFraction={fraction}: must be between 0 and 1")
        if fraction is not None and column is not None:
            raise ConfError(f"validationIndicatorCol={column!r} and validationFraction={fraction}: set one of them")
        seconds, directory = self.getCheckpointSeconds(), self.getCheckpointDir()
        often = self.getCheckpointInterval() is not None or seconds is not None
        if directory is not None and not often:
            raise ConfError(f"checkpointDir={directory}: set checkpointInterval (steps) or checkpointSeconds too")
        if directory is None and (often or self.getResume()):
            raise ConfError("checkpointInterval, checkpointSeconds and resume need checkpointDir; it is not set")

    def _check_columns(self) -> None:
        for one, several in (("featuresCol", "featuresCols"), ("labelCol", "labelCols")):
            names = self.getOrDefault(several)
            if names is not None and self.isSet(one):
                raise ConfError(f"{one}={self.getOrDefault(one)!r} and {several}={names}: set one of them")
            if names is not None and (not names or len(set(names)) < len(names)):
                raise ConfError(f"{several}={names}: must name at least one column, and none of them twice")
        for param in ("inputShapes", "inputTypes"):
            values = self.getOrDefault(param)
            if values is not None and len(values) != len(self.feature_columns()):
                raise ConfError(
                    f"{param}={values}: must have one entry for each of the feature columns {self.feature_columns()}"
                )
        for shape in self.getInputShapes() or ():
            if shape is not None and any(length < 1 for length in shape):
                raise ConfError(f"inputShapes: {shape} must have lengths of at least 1")
        for dtype in self.getInputTypes() or ():
            if dtype is not None and dtype not in TYPES:
                raise ConfError(f"inputTypes: {dtype!r} must be one of {', '.join(TYPES)}")

    def feature_columns(self) -> list[str]:
        """Return the names of all feature columns, in the order of the model's arguments."""
        return self.getFeaturesCols() or [self.getFeaturesCol()]

    def feature_param(self) -> str:
        """Return the name of the Param that lists the feature columns."""
        return "featuresCol" if self.getFeaturesCols() is None else "featuresCols"

    def label_columns(self) -> list[str]:
        """Return the names of all label columns, in the order in which the loss gets them."""
        return self.getLabelCols() or [self.getLabelCol()]

    def label_param(self) -> str:
        """Return the name of the Param that lists the label columns."""
        return "labelCol" if self.getLabelCols() is None else "labelCols"

    def getWeightCol(self) -> str | None:
        """Return the weight column; None: all rows have the same weight. A value of "" counts as None."""
        return self.getOrDefault(self.weightCol) or None

    def getValidationIndicatorCol(self) -> str | None:
        """Return the bool column that marks rows for validation, or None. A value of "" counts as None."""
        return self.getOrDefault(self.validationIndicatorCol) or None

    def setFeaturesCol(self, value: str | list[str]) -> Any:
        """Set one feature column, or several (see ``featuresCols``)."""
        if not isinstance(value, str):
            return self.setFeaturesCols(value)
        self.clear(self.featuresCols)
        return self._set(featuresCol=value)

    def setFeaturesCols(self, value: list[str]) -> Any:
        """Set several feature columns, instead of ``featuresCol``."""
        self.clear(self.featuresCol)
        return self._set(featuresCols=value)

    def setLabelCol(self, value: str | list[str]) -> Any:
        """Set one label column, or several (see ``labelCols``)."""
        if not isinstance(value, str):
            return self.setLabelCols(value)
        self.clear(self.labelCols)
        return self._set(labelCol=value)

    def setLabelCols(self, value: list[str]) -> Any:
        """Set several label columns, instead of ``labelCol``."""
        self.clear(self.labelCol)
        return self._set(labelCols=value)


@_with_components
class EstimatorParams(TorchParams):
    """Params of the estimator, and its components, which Params cannot hold."""
