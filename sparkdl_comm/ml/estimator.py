"""Training a PyTorch model on Spark executors, as a pyspark.ml Estimator."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame

from sparkdl_comm.job import session
from sparkdl_comm.ml.estimator_persistence import TorchEstimatorReader, TorchEstimatorWriter
from sparkdl_comm.ml.model import TorchModel
from sparkdl_comm.ml.recipe import TrainingRecipe

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sparkdl_comm.ml.params import ParamKeywords


class TorchEstimator(Estimator[TorchModel], TrainingRecipe, MLReadable["TorchEstimator"], MLWritable):
    """Trains ``model`` on the rows of a DataFrame, on several executors at once, synchronously::

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

    :param model: a ``torch.nn.Module``, its class, or a function that returns one. Gets one tensor ``[rows, …]`` per feature
        column, float32, or int64 for integers if the model has an Embedding (see ``inputTypes``); a column of numbers
        has width 1. A module given is not changed: a copy is trained. A trained
        :class:`~sparkdl_comm.ml.model.TorchModel` is trained further. BatchNorm: each rank has running statistics of its
        own, which are averaged after each epoch; ``torch.nn.SyncBatchNorm`` works over all ranks, on CPUs too.
    :param loss: ``(output, target)`` -> scalar tensor, the mean over the rows; or a loss of ``torch.nn``: an
        instance, a class, or its name. ``target`` is ``[rows, …]``, or a tuple for several label columns: int64 for
        losses over classes and, with a loss of your own, if the label column is of an integral type; else float32. With
        ``weightCol``, a loss of your own must return one loss per row. CrossEntropyLoss and NLLLoss with weights of classes
        or ignored labels take their mean over the labels of all ranks, as in one process: with ``weightCol``, the sum of
        weight x class weight x loss, divided by the sum of weight x class weight. A loss of your own whose mean is
        not over the rows takes it over each rank's, then over the ranks by their rows. It has no parameters to train:
        make them the model's, and return them beside its output.
    :param optimizer: what makes an optimizer from parameters: a class of ``torch.optim`` or
        ``sparkdl_comm.optim``, or a ``functools.partial`` of one. Default: SGD with learning rate 0.01. With
        ``learningRate`` it is called with ``lr=``, so that CrossValidator can tune it.
    :param param_groups: function module -> list of dicts, as torch.optim takes parameter groups.
    :param lr_scheduler: what makes a scheduler of ``torch.optim.lr_scheduler`` from an optimizer. If it takes
        ``total_steps`` or ``num_training_steps``, it gets how often it will step. It steps per epoch, or per optimizer step
        (``lrSchedulerInterval``); unless that is set, OneCycleLR, CyclicLR and what gets that total step per
        optimizer step. ReduceLROnPlateau watches ``earlyStoppingMonitor``, so it needs validation rows, or "loss".
    :param metrics: by name, a ``torchmetrics.Metric``, or a callable (output, target) -> scalar, whose mean over
        the rows is taken; evaluated on the validation rows after each epoch.
    :param decode: function from a value of a feature column that is binary or text, to an array or tensor; executors call
        it once per row, and the model calls it in ``transform``.
    :param collate_fn: for sequences: function from a list of rows, tensors ``[length, …]`` of different lengths on the
        model's device, to what the model is called with instead of a tensor ``[rows, …]``, such as a padded tensor or a
        PackedSequence, e.g. ``functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)``. A tuple or dict is
        passed as one argument. For several, return ``sparkdl_comm.Arguments(*args, **kwargs)``.
        Called for each batch, also in ``transform``, and for each feature column of arrays, or decoded, that has no shape in
        ``inputShapes``. What a row is padded to depends on the rows beside it, so the model's output for a row must not depend
        on its padding. Labels are all of one length.
    :param augment: function from the inputs of a batch for training, one tensor ``[rows, …]`` per feature column, to others of
        as many rows: a tensor, or a tuple where there are several columns. Called in each step, after rows were decoded and
        kept. What it draws from python's, numpy's and torch's generators depends on ``seed``, rank and step alone.
    :param callbacks: list of :class:`~sparkdl_comm.train.loop.callbacks.Callback`; each rank calls a copy of its own.
    :param loggers: list of :class:`~sparkdl_comm.report.loggers.RunLogger`, such as TensorBoardLogger and MLflowLogger.
    :param params: ``featuresCol`` ("features"), ``labelCol`` ("label"), ``predictionCol`` ("prediction"),
        ``rawPredictionCol`` ("rawPrediction"), ``probabilityCol`` ("probability"), ``weightCol``,
        ``validationIndicatorCol`` or ``validationFraction``, ``inputShapes``, ``inputTypes``;
        ``batchSize`` (rows per step over all ranks, 32), ``learningRate``, ``accumulationSteps`` (1), ``maxGradNorm``,
        ``precision`` ("fp32"), ``earlyStoppingPatience`` and what goes with it, ``maxIter`` (epochs, 1), ``seed`` (0),
        ``num_workers`` (one per slot), ``device`` ("cpu"), ``strategy`` (``spark.sparkdl.comm.strategy``),
        ``compression`` (``spark.sparkdl.comm.compression``), ``checkpointDir``; also ``features_col`` and so on.
    :raises TypeError: an unknown keyword, or a value of the wrong type.

    With ``checkpointDir`` the state of training is written every ``checkpointInterval`` steps or ``checkpointSeconds``
    seconds, while training goes on; the newest ``checkpointKeep`` (2) stay. ``fit`` goes on from there when a rank was lost
    (``spark.sparkdl.comm.maxRestarts``), and another ``fit`` does with ``resume=True``: with the same rows it ends with the
    bits of one that was never interrupted. The optimizer's settings, such as the learning rate, are then those of the
    checkpoint.

    ``model``, ``loss``, ``optimizer`` and so on are attributes, not Params: Params must be JSON. :meth:`copy` shares
    them.
    """

    #: Saved pipelines name the class by it; where the code lies may change.
    __module__ = "sparkdl_comm"

    def __init__(
        self,
        *,
        model: Any = None,
        loss: Any = None,
        optimizer: Any = None,
        param_groups: Any = None,
        lr_scheduler: Any = None,
        metrics: Any = None,
        callbacks: Any = None,
        decode: Any = None,
        collate_fn: Any = None,
        augment: Any = None,
        loggers: Any = None,
        **params: Unpack[ParamKeywords],
    ) -> None:
        super().__init__()
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.param_groups, self.lr_scheduler = param_groups, lr_scheduler
        self.metrics, self.callbacks, self.decode = metrics, callbacks, decode
        self.collate_fn, self.augment, self.loggers = collate_fn, augment, loggers
        self._set_keywords(dict(params))

    def setParams(self, **params: Unpack[ParamKeywords]) -> TorchEstimator:
        """Set several Params, by the constructor's keywords."""
        self._set_keywords(dict(params))
        return self

    def setModel(self, value: Any) -> TorchEstimator:
        self.model = value
        return self

    def getModel(self) -> Any:
        return self.model

    def setLoss(self, value: Any) -> TorchEstimator:
        self.loss = value
        return self

    def getLoss(self) -> Any:
        return self.loss

    def write(self) -> TorchEstimatorWriter:
        return TorchEstimatorWriter(self)

    @classmethod
    def read(cls) -> TorchEstimatorReader:
        return TorchEstimatorReader(cls, {})

    @classmethod
    def load(cls, path: str, **components: Any) -> TorchEstimator:
        """The estimator saved at ``path``, any path that Spark can read.

        :param components: ``model``, ``loss`` and so on, to take instead of those that were saved. Needed for those that
            could not be imported by name; see :mod:`sparkdl_comm.ml.estimator_persistence`.
        :raises PersistenceError: nothing there, or it cannot be read, or a component is needed.
        :raises ModelError: ``model`` is another model; names the tensors that differ.
        """
        unknown = sorted(set(components) - set(cls.ingredient_names()))
        if unknown:
            raise TypeError(f"{cls.__name__}.load: {', '.join(unknown)} must be of {', '.join(cls.ingredient_names())}")
        return TorchEstimatorReader(cls, components).load(path)

    @staticmethod
    def ingredient_names() -> list[str]:
        """The attributes that are no Params: what the constructor names itself."""
        parameters = inspect.signature(TorchEstimator.__init__).parameters.values()
        return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]

    def _fit(self, dataset: DataFrame) -> TorchModel:
        """Train, and return the model. All that can be checked is, before any executor is touched, in this
        order:

        :raises ConfError: a Param or a setting is wrong; dynamic allocation is on (after the model's checks).
        :raises InputError: no DataFrame of Spark; a column is missing or of a type that is not accepted.
        :raises ModelError: model, loss or optimizer cannot be used, or cannot be shipped.
        :raises PluginError: the strategy needs the plugin, and it is not loaded, or is another Spark's.
        :raises SlotsError: more workers than slots.
        :raises DeadlineError: other fits of this application hold the slots for too long.

        Then, from the ranks: InputError (nulls, ragged features, no rows), NonFiniteLossError, RankFailedError,
        RankLostError, DeadlineError and other GangErrors; SlotsError (others hold the slots); PersistenceError (a
        checkpoint cannot be written or read), and ConfError, ModelError or InputError if the last one is of another
        run. ResultError: training ended, and something else failed. ``state_dict`` of an error has the trained
        tensors, if they had come.
        """
        from sparkdl_comm.job.interrupt import interruptible
        from sparkdl_comm.ml.fit import train

        spark = session.session_of(dataset)
        with interruptible(spark):
            session.use_own_python(spark)
            self._check_params()
            model = train(self, dataset)
        model._resetUid(self.uid)
        return self._copyValues(model)
