"""``BigDLEstimator``, which fits a BigDL model to a DataFrame, and ``BigDLModel``, the result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bigdl.dllib.nn.layer import Model as BigDLNetwork
from bigdl.dllib.nnframes import NNModel
from bigdl.dllib.optim.optimizer import SGD, MaxEpoch
from bigdl.dllib.utils.common import callBigDlFunc
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import keyword_only
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasMaxIter, HasPredictionCol
from pyspark.sql import DataFrame

from sparkdl_comm.bigdl.optimizer import IBatchOptimizer, check_floats, translate_errors
from sparkdl_comm.errors import PersistenceError

_DEFINITION_FILE, _WEIGHTS_FILE, _ABOUT_FILE = "model.bigdl", "weights.bin", "about.json"
#: Errors of BigDL's functions that read and write files.
_JVM_ERRORS = (CapturedException, Py4JJavaError)


class BigDLEstimator(Estimator[Any], HasFeaturesCol, HasLabelCol, HasPredictionCol, HasMaxIter):
    """Estimator that trains a BigDL model on a DataFrame with :class:`~sparkdl_comm.bigdl.optimizer.IBatchOptimizer`.

    Call :func:`~sparkdl_comm.bigdl.installation.start_engine` first. ``fit`` trains the given model in place, and returns a
    :class:`~sparkdl_comm.bigdl.estimator.BigDLModel` that holds it.

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


class BigDLModel(Model, HasFeaturesCol, HasPredictionCol):
    """BigDL model that transforms DataFrames.

    ``model``: the BigDL ``Layer``. ``summary`` and ``losses``: those of
    :class:`~sparkdl_comm.bigdl.optimizer.IBatchOptimizer`; None and empty if the model was loaded.

    ``transform`` uses BigDL's ``NNModel``. That class cannot be saved on Spark 3.5, which has another JSON library.
    """

    def __init__(
        self,
        model: Any,
        featureSize: Sequence[int],
        featuresCol: str,
        predictionCol: str,
        summary: dict[str, Any] | None = None,
        losses: Sequence[float] = (),
    ) -> None:
        super().__init__()
        self.model, self._size = model, list(featureSize)
        self.summary, self.losses = summary, list(losses)
        self._set(featuresCol=featuresCol, predictionCol=predictionCol)

    def save(self, path: str | Path) -> None:
        """Write the model in BigDL's format, and its columns and feature size, to the folder ``path``, which may exist.

        :raises PersistenceError: the folder cannot be written.
        """
        folder = Path(path)
        about = {"size": self._size, "features": self.getFeaturesCol(), "prediction": self.getPredictionCol()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.model.saveModel(str(folder / _DEFINITION_FILE), str(folder / _WEIGHTS_FILE), True)
            (folder / _ABOUT_FILE).write_text(json.dumps(about))
        except (OSError, *_JVM_ERRORS) as exc:
            raise PersistenceError(f"{folder}: the model could not be written: {_describe(exc)}") from exc

    @classmethod
    def load(cls, path: str | Path) -> BigDLModel:
        """Load a model from the folder ``path``.

        :raises PersistenceError: the folder has no saved model, or the model is damaged.
        """
        folder = Path(path)
        try:
            about = json.loads((folder / _ABOUT_FILE).read_text())
            names = about["size"], about["features"], about["prediction"]
        except (OSError, ValueError, KeyError) as exc:
            raise PersistenceError(f"{folder}: no saved BigDLModel: {exc}") from exc
        try:
            network = BigDLNetwork.loadModel(str(folder / _DEFINITION_FILE), str(folder / _WEIGHTS_FILE))
        except _JVM_ERRORS as exc:
            raise PersistenceError(f"{folder}: the saved BigDLModel cannot be read: {_describe(exc)}") from exc
        return cls(network, *names)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        scoring = NNModel(self.model, self._size)
        scoring.setFeaturesCol(self.getFeaturesCol()).setPredictionCol(self.getPredictionCol())
        scored: DataFrame = scoring.transform(dataset)
        return scored


def _describe(exc: Exception) -> str:
    return str(exc.java_exception.getMessage() if isinstance(exc, Py4JJavaError) else exc)
