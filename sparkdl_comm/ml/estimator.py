"""The pyspark.ml Estimator that trains a PyTorch model on Spark executors."""

from __future__ import annotations

import functools
import secrets
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame

from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.job import restart, session, slots
from sparkdl_comm.job.broadcasts import model_for_tasks
from sparkdl_comm.job.cached_rows import make_cache
from sparkdl_comm.job.interrupt import cancel_on_interrupt
from sparkdl_comm.job.summary import summarize
from sparkdl_comm.job.trained_module import driver_module, free_parameters, keep_tensors, load_trained
from sparkdl_comm.ml import columns, components
from sparkdl_comm.ml.model import TorchModel, TorchModelReader, TorchModelWriter
from sparkdl_comm.ml.params import COMPONENTS
from sparkdl_comm.ml.persistence import FolderReader, FolderWriter
from sparkdl_comm.ml.recipe import TrainingRecipe
from sparkdl_comm.ml.scoring import activation_of
from sparkdl_comm.ml.usual_strategy import usual_strategy
from sparkdl_comm.ml.weights import WEIGHTS, read_weights, write_weights
from sparkdl_comm.optim import elementwise
from sparkdl_comm.report.loggers import RunLog
from sparkdl_comm.report.progress import show_line
from sparkdl_comm.strategies.registry import strategy_class
from sparkdl_comm.train import asynchronous_loop
from sparkdl_comm.train.spec import TrainSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Unpack

    from sparkdl_comm.ml.params import ParamKeywords
    from sparkdl_comm.report.loggers import RunLogger
    from sparkdl_comm.train.callbacks import Callback


#: The component whose weights are saved, in the folder of an estimator.
_MODEL = "model"


class TorchEstimator(Estimator[TorchModel], TrainingRecipe, MLReadable["TorchEstimator"], MLWritable):
    """Estimator that trains ``model`` on a DataFrame with several executors, synchronously::

        estimator = TorchEstimator(
            model=LeNet5,
            loss="CrossEntropyLoss",
            optimizer=functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
            featuresCol="pixels",
            batchSize=128,
            maxIter=10,
        )
        model = estimator.fit(train)
        model.transform(test)

    :param model: a ``torch.nn.Module``, its class, or a function that returns one. It gets one tensor ``[rows, …]`` per
        feature column: float32, or int64 for integers if the model has an Embedding (see ``inputTypes``). A column of
        numbers has width 1. ``fit`` trains a copy of a module. A :class:`~sparkdl_comm.ml.model.TorchModel` is trained
        further. BatchNorm: each rank has its own running statistics, which are averaged after each epoch.
        ``torch.nn.SyncBatchNorm`` works over all ranks, on CPUs too.
    :param loss: function ``(output, target)`` -> scalar tensor, the mean over the rows; or a loss of ``torch.nn``: an
        instance, a class, or its name. ``target`` is ``[rows, …]``, or a tuple for several label columns. It is int64
        for losses over classes and, with your own loss, for label columns of an integral type; else float32. With
        ``weightCol``, your own loss must return one loss per row. With class weights or ignored labels,
        CrossEntropyLoss and NLLLoss average over the labels of all ranks, as in one process. With ``weightCol`` too,
        their mean is the sum of weight x class weight x loss, divided by the sum of weight x class weight. If the mean
        of your own loss is not over the rows, it covers one rank's batch; the ranks' means are then averaged by their
        numbers of rows. A loss must not have trainable parameters. Make them part of the model, and return them with
        its output.
    :param optimizer: callable that makes an optimizer from parameters: a class of ``torch.optim`` or
        ``sparkdl_comm.optim``, or a ``functools.partial`` of one. Default: SGD with learning rate 0.01. With
        ``learningRate`` it is called with ``lr=``, so that CrossValidator can tune it.
    :param param_groups: function module -> list of dicts, as torch.optim takes parameter groups.
    :param lr_scheduler: callable that makes a scheduler of ``torch.optim.lr_scheduler`` from an optimizer. If it takes
        ``total_steps`` or ``num_training_steps``, it gets the number of its steps. ``lrSchedulerInterval`` sets whether
        it steps per epoch or per optimizer step. By default, schedulers that take the number of steps, OneCycleLR and
        CyclicLR step per optimizer step, others per epoch. ReduceLROnPlateau watches ``earlyStoppingMonitor``, so it
        needs validation rows, or "loss".
    :param metrics: dict of name -> ``torchmetrics.Metric`` or callable (output, target) -> scalar, which is averaged
        over the rows. Evaluated on the validation rows after each epoch.
    :param decode: function from a value of a binary or text feature column to an array or tensor. Executors call it
        once per row in ``fit``, and again in ``transform``.
    :param collate_fn: for sequences: function from a list of rows to the model's argument, e.g.
        ``functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)``. Rows are tensors ``[length, …]`` of
        different lengths, on the model's device. The result replaces the tensor ``[rows, …]``, such as a padded tensor
        or a PackedSequence. A tuple or dict is passed as one argument; to pass several, return
        ``sparkdl_comm.Arguments(*args, **kwargs)``. It is called for each batch, also in ``transform``, and for each
        feature column of arrays or decoded values without a shape in ``inputShapes``. Padding depends on the other rows
        of the batch, so the model's output for a row must not depend on its padding. All labels must have one length.
    :param augment: function from the inputs of a training batch, one tensor ``[rows, …]`` per feature column, to new
        inputs with as many rows: a tensor, or a tuple for several columns. Called in each step on decoded rows. Random
        numbers of python, numpy and torch in it depend only on ``seed``, rank and step.
    :param callbacks: list of :class:`~sparkdl_comm.train.callbacks.Callback`; each rank calls its own copy.
    :param loggers: list of :class:`~sparkdl_comm.report.loggers.RunLogger`, such as TensorBoardLogger and MLflowLogger.
    :param params: Params, with defaults in brackets. Columns: ``featuresCol`` ("features"), ``labelCol`` ("label"),
        ``predictionCol`` ("prediction"), ``rawPredictionCol`` ("rawPrediction"), ``probabilityCol`` ("probability"),
        ``weightCol``, ``validationIndicatorCol`` or ``validationFraction``, ``inputShapes``, ``inputTypes``. Training:
        ``batchSize`` (rows per step over all ranks, 32), ``learningRate``, ``accumulationSteps`` (1), ``maxGradNorm``,
        ``precision`` ("fp32"), ``earlyStoppingPatience`` and the other ``earlyStopping`` Params, ``maxIter`` (epochs,
        1), ``seed`` (0), ``checkpointDir``. Cluster: ``num_workers`` (one per slot), ``device`` ("cpu"), ``strategy``
        (``spark.sparkdl.comm.strategy``), ``compression`` (``spark.sparkdl.comm.compression``). All have a snake_case
        spelling, such as ``features_col``. Without a strategy a fit uses ps where the plugin is loaded, the model has
        two million parameters or more, and ps accepts optimizer, compression and layers, else ring.
    :raises TypeError: a keyword is unknown, or a value has the wrong type.

    With ``checkpointDir``, training writes its state every ``checkpointInterval`` steps or ``checkpointSeconds``
    seconds without stopping, and keeps the newest ``checkpointKeep`` (2). If a rank is lost, ``fit`` continues from the
    newest checkpoint (``spark.sparkdl.comm.maxRestarts``). With ``resume=True``, another ``fit`` continues from it,
    too. On the same rows, the result has the same bits as without the interruption. The optimizer's settings, such as
    the learning rate, then come from the checkpoint.

    ``model``, ``loss``, ``optimizer`` and so on are attributes, not Params, because Params must be JSON. :meth:`copy`
    shares them.
    """

    #: Module name in saved pipelines, independent of the file's place.
    __module__ = "sparkdl_comm"

    def __init__(
        self,
        *,
        model: Any = None,
        loss: str | Callable[..., Any] | None = None,
        optimizer: Callable[..., Any] | None = None,
        param_groups: Callable[..., list[dict[str, Any]]] | None = None,
        lr_scheduler: Callable[..., Any] | None = None,
        metrics: Mapping[str, Callable[..., Any]] | None = None,
        callbacks: Sequence[Callback] | None = None,
        decode: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[list[torch.Tensor]], Any] | None = None,
        augment: Callable[..., Any] | None = None,
        loggers: Sequence[RunLogger] | None = None,
        **params: Unpack[ParamKeywords],
    ) -> None:
        super().__init__()
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.param_groups, self.lr_scheduler = param_groups, lr_scheduler
        self.metrics, self.callbacks, self.decode = metrics, callbacks, decode
        self.collate_fn, self.augment, self.loggers = collate_fn, augment, loggers
        self._set_keywords(dict(params))

    def setParams(self, **params: Unpack[ParamKeywords]) -> TorchEstimator:
        """Set several Params, with the constructor's keywords."""
        self._set_keywords(dict(params))
        return self

    def write(self) -> TorchEstimatorWriter:
        """Return the writer of this estimator. ``write().overwrite().save(path)`` replaces what is at ``path``."""
        return TorchEstimatorWriter(self)

    @classmethod
    def read(cls) -> TorchEstimatorReader:
        """Return the reader for Spark's pipelines. Otherwise use :meth:`load`."""
        return TorchEstimatorReader(cls, {})

    @classmethod
    def load(cls, path: str, **components: Any) -> TorchEstimator:
        """Load the estimator saved at ``path``, any path that Spark can read.

        :param components: ``model``, ``loss`` and so on, in place of the saved ones. Required for components that
            cannot be imported by name; see :mod:`sparkdl_comm.ml.persistence`.
        :raises PersistenceError: there is nothing at ``path``, it cannot be read, or a component is required.
        :raises ModelError: ``model`` is another model. The message names the tensors that differ.
        :raises TypeError: ``components`` has an unknown name.
        """
        unknown = sorted(set(components) - set(COMPONENTS))
        if unknown:
            raise TypeError(f"{cls.__name__}.load: unknown {', '.join(unknown)}; known: {', '.join(COMPONENTS)}")
        return TorchEstimatorReader(cls, components).load(path)

    def _fit(self, dataset: DataFrame) -> TorchModel:
        """Train, and return the model. Checks everything possible before it uses executors, in this order:

        :raises ConfError: a Param or a setting is wrong; dynamic allocation is on (after the model's checks).
        :raises InputError: ``dataset`` is not a Spark DataFrame; a column is missing or its type is not accepted.
        :raises ModelError: model, loss or optimizer cannot be used, or cannot be shipped.
        :raises PluginError: the strategy needs the plugin, and it is not loaded, or belongs to another Spark version.
        :raises SlotsError: there are more workers than slots.
        :raises DeadlineError: other fits of this application hold the slots for too long.

        Then ranks may raise InputError (nulls, ragged features, no rows), NonFiniteLossError, RankFailedError,
        RankLostError, DeadlineError and other GangErrors, SlotsError (others hold the slots), or PersistenceError (a
        checkpoint cannot be written or read). They raise ConfError, ModelError or InputError if the last checkpoint
        belongs to another run. ResultError: training succeeded, and a later step failed. ``state_dict`` of an error has
        the trained tensors if the driver has received them.
        """

        spark = session.session_of(dataset)
        with cancel_on_interrupt(spark):
            session.use_driver_python(spark)
            self._check_params()
            model = _train(self, dataset)
        model._resetUid(self.uid)
        return self._copyValues(model)


class TorchEstimatorWriter(FolderWriter):
    """Writer of a :class:`~sparkdl_comm.ml.estimator.TorchEstimator`."""

    _instance: TorchEstimator

    def write_to(self, folder: Path) -> dict[str, str]:
        estimator = self._instance
        components = {name: getattr(estimator, name) for name in COMPONENTS}
        missing = {}
        if isinstance(estimator.model, TorchModel):
            del components[_MODEL]
            (folder / _MODEL).mkdir()
            missing = TorchModelWriter(estimator.model).write_to(folder / _MODEL)
        elif isinstance(estimator.model, torch.nn.Module):
            write_weights(estimator.model, folder)
        return {**missing, **self.write_metadata(folder, components)}


class TorchEstimatorReader(FolderReader["TorchEstimator"]):
    """Reader of a :class:`~sparkdl_comm.ml.estimator.TorchEstimator`."""

    def read_from(self, folder: Path, path: str) -> TorchEstimator:
        metadata = self.read_metadata(folder, path)
        components = self.rebuild_components(metadata, folder, path)
        if (folder / _MODEL).exists():
            given = {_MODEL: self._given[_MODEL]} if _MODEL in self._given else {}
            components[_MODEL] = TorchModelReader(TorchModel, given).read_from(folder / _MODEL, path)
        elif (folder / WEIGHTS).exists():
            components[_MODEL] = read_weights(components[_MODEL], folder, path)
        return self.restore(self._cls(**components), metadata)


def _train(estimator: TrainingRecipe, dataset: DataFrame) -> TorchModel:
    """Check all but the Params, train ``estimator`` on ``dataset``, and return the model.

    ``TorchEstimator._fit`` documents the errors. Warnings point at the caller of ``fit``.
    """
    spark = session.session_of(dataset)
    settings = session.session_conf(spark)
    conf = CommConf.from_mapping(settings, strategy=estimator.getStrategy(), compression=estimator.getCompression())
    model = components.check_model(estimator.model)
    loss = components.make_loss(estimator.loss)
    target_type = functools.partial(components.target_type, loss)
    decode = estimator.check_function("decode", "bytes -> array or tensor")
    collate_fn = estimator.check_function(
        "collate_fn",
        "list of tensors -> the model's argument, e.g. functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)",
    )
    augment = estimator.check_function("augment", "tensor [rows, …] -> tensor [rows, …]")
    limits = components.label_limits(loss)
    expressions, rows = columns.training_columns(dataset, estimator, target_type, decode, limits, collate_fn)
    if rows.weight is not None:
        loss = components.make_row_loss(loss)
    optimization, observation = estimator.check_optimization(), estimator.check_observation()
    components.check_picklable(
        model=model,
        loss=loss,
        optimizer=optimization.optimizer,
        param_groups=estimator.param_groups,
        lr_scheduler=estimator.lr_scheduler,
        metrics=estimator.metrics,
        callbacks=estimator.callbacks,
        decode=decode,
        collate_fn=collate_fn,
        augment=augment,
    )
    module = driver_module(model, estimator.getSeed())
    is_named = estimator.getStrategy() is not None or f"{PREFIX}strategy" in settings
    if not is_named:
        conf = replace(conf, strategy=usual_strategy(spark, settings, conf, module, optimization))
    strategy = strategy_class(conf)
    if is_named and strategy.has_stripes:
        elementwise.check_on_driver(module, optimization)
    free_parameters(module)
    session.check_dynamic_allocation(spark)
    if strategy.needs_plugin:
        session.check_plugin(spark)
    checkpoints = estimator.check_checkpoints(spark)
    if not strategy.is_synchronous:
        asynchronous_loop.check_settings(conf, optimization)
    world = slots.check_slots(spark, estimator.getNumWorkers(), conf.slot_timeout)
    strategy.check(conf, world)
    session.check_disk_cache(spark, conf)
    slots.warn_about_threads(spark, world)
    restart.warn_about_limit(spark)
    own_connections = {
        "gradients": not strategy.needs_plugin,
        "rows": conf.data.shuffle == "global",
        "the trained model": True,
    }
    sent = ", ".join(name for name, is_own in own_connections.items() if is_own)
    session.warn_unencrypted(spark, f"{sent}, what ranks print, and what they tell each other between steps")
    if estimator.getBatchSize() < world:
        warnings.warn(
            f"batchSize={estimator.getBatchSize()} is less than num_workers={world}. batchSize counts rows of all ranks, so in"
            f" each step {world - estimator.getBatchSize()} of them have no rows. Set it to at least num_workers",
            stacklevel=4,  # the caller of fit
        )

    spec = TrainSpec(
        model=model,
        loss=loss,
        optimization=optimization,
        observation=observation,
        batch_size=estimator.getBatchSize(),
        epochs=estimator.getMaxIter(),
        seed=estimator.getSeed(),
        device=estimator.getDevice(),
        strategy=conf.strategy,
        conf=conf,
        world=world,
        classification=[(field.dtype, field.shape) for field in rows.targets] == [("int64", ())],
        attempt_id=secrets.token_hex(8),
        secret=secrets.token_bytes(32),
        driver_address=("", 0),
        rows=rows,
        augment=augment,
        labels=components.class_labels(loss, rows.targets),
        checkpoints=checkpoints,
    )
    data = columns.training_rows(dataset, estimator, expressions, rows)  # the first Spark job
    with RunLog.of(estimator) as log, slots.ADMISSION.admit(world, slots.slots_now(spark), conf.turn_timeout):
        spec = replace(spec, model=model_for_tasks(spark, model), cache=make_cache(data, spec))
        (tensors, reports), restarts = restart.run_with_restarts(data, spec, log.log_progress)
        with keep_tensors(tensors):
            summary = summarize(reports, strategy.full_name(conf), world, restarts)
            log.log_history(summary["history"])
    with keep_tensors(tensors):
        show_line(conf.progress, f"sparkdl_comm fit: {summary.line()}")
        step_rows = spec.batch_size * optimization.accumulation_steps
        if summary["rows"] < step_rows:
            warnings.warn(
                f"batchSize={spec.batch_size} x accumulationSteps={optimization.accumulation_steps} is more than the"
                f" {summary['rows']} rows of the data: each epoch was one step on all rows",
                stacklevel=4,  # the caller of fit
            )
        shapes = [report.output_shape for report in reports if report.output_shape is not None]
        return TorchModel(
            load_trained(module, tensors),
            spec.classification,
            summary,
            shapes[0] if shapes else None,
            _factory(estimator.model),
            activation_of(loss),
            decode,
            collate_fn,
        )


def _factory(model: Any) -> Any:
    """Return the class or function that ``model`` is or, for a TorchModel, was made from; None for a module."""
    if isinstance(model, TorchModel):
        return model.factory
    return None if isinstance(model, torch.nn.Module) else model
