"""``BigDLEstimator``: a BigDL model is fitted to a DataFrame."""

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
from sparkdl_comm.bigdl.optimizer import IBatchOptimizer, check_floats, typed_errors


class BigDLEstimator(Estimator[Any], HasFeaturesCol, HasLabelCol, HasPredictionCol, HasMaxIter):
    """Trains a BigDL model on a DataFrame with :class:`~sparkdl_comm.bigdl.optimizer.IBatchOptimizer`.

    :func:`~sparkdl_comm.bigdl.engine.start_engine` comes first. ``fit`` returns a
    :class:`~sparkdl_comm.bigdl.model.BigDLModel` with the model that was given, trained.
    """

    batchSize: Param[int] = Param(
        Params._dummy(), "batchSize", "rows in all executors in an iteration", typeConverter=TypeConverters.toInt
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
        """``model``: a BigDL ``Layer``; ``featureSize``: of a row's tensor, of which ``featuresCol`` has the numbers, in a
        vector or an array; ``optimMethod``: of BigDL, default ``SGD()``; ``batchSize``: a multiple of executors times cores;
        ``maxIter``: epochs. BigDL's criterions count classes from 1."""
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
        """:raises ModelError: the model cannot be trained so. GangError: a rank failed too often."""
        check_floats(self._model)
        with typed_errors():
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
        training = IBatchOptimizer.of(optimizer)
        trained = training.optimize()
        columns = self.getFeaturesCol(), self.getPredictionCol()
        return BigDLModel(trained, self._size, *columns, training.summary, training.losses)
