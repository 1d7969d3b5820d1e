"""``BigDLEstimator``, which fits a BigDL model to a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bigdl.dllib.optim.optimizer import SGD, MaxEpoch
from bigdl.dllib.utils.common import callBigDlFunc
from pyspark import keyword_only
from pyspark.ml import Estimator
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasMaxIter, HasPredictionCol
from pyspark.sql import DataFrame

from sparkdl_comm.bigdl.model import BigDLModel
from sparkdl_comm.bigdl.optimizer import IBatchOptimizer, check_floats, translate_errors


class BigDLEstimator(Estimator[Any], HasFeaturesCol, HasLabelCol, HasPredictionCol, HasMaxIter):
    """Estimator that trains a BigDL model on a DataFrame with :class:`~sparkdl_comm.bigdl.optimizer.IBatchOptimizer`.

    Call :func:`~sparkdl_comm.bigdl.installation.start_engine` first. ``fit`` trains the given model in place, and returns a
    :class:`~sparkdl_comm.bigdl.model.BigDLModel` that holds it.

    :param model: a BigDL ``Layer``.
    :param criterion: BigDL's loss, such as ``ClassNLLCriterion()``. BigDL's criterions count classes from 1.
    :param featureSize: shape of a row's tensor; ``featuresCol`` holds its numbers, in a vector or an array.
    :param optimMethod: an optimization method of BigDL; default ``SGD()``.
    :param featuresCol: name of the column of features.
    :param labelCol: name of the column of labels.
    :param predictionCol: name of the column that ``transform`` adds.
    :param batchSize: rows of one iteration over all executors, a multiple of executors times cores.
    :param maxIter: number of epochs.
    """

    batchSize: Param[int] = Param(
        Params._dummy(), "batchSize", "rows of one iteration over all executors", typeConverter=TypeConverters.toInt
    )

    @keyword_only
    def __init__(
        self,
        *,
        model: Any,
        criterion: Any,
        featureSize: Sequence[int],
        optimMethod: Any = None,
        featuresCol: str = "features",
        labelCol: str = "label",
        predictionCol: str = "prediction",
        batchSize: int = 32,
        maxIter: int = 10,
    ) -> None:
        super().__init__()
        self._model, self._criterion, self._size = model, criterion, list(featureSize)
        self._method = optimMethod or SGD()
        self._set(
            featuresCol=featuresCol,
            labelCol=labelCol,
            predictionCol=predictionCol,
            batchSize=batchSize,
            maxIter=maxIter,
        )

    def _fit(self, dataset: DataFrame) -> BigDLModel:
        """Train the model.

        :raises ModelError: the model cannot be trained with these settings.
        :raises GangError: a rank failed too often.
        """
        check_floats(self._model)
        with translate_errors():
            optimizer = callBigDlFunc(
                "float",
                "createIBatchOptimizerOfFrame",
                self._model.value,
                dataset,
                self.getFeaturesCol(),
                self.getLabelCol(),
                self._size,
                self._criterion,
                {self._model.name(): self._method},
                MaxEpoch(self.getMaxIter()),
                self.getOrDefault(self.batchSize),
            )
        training = IBatchOptimizer.from_jvm(optimizer)
        trained = training.optimize()
        columns = self.getFeaturesCol(), self.getPredictionCol()
        return BigDLModel(trained, self._size, *columns, training.summary, training.losses)
