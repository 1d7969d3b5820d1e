"""Params of the estimator and the model, named as pyspark.ml and xgboost.spark name them; one file per concern."""

from __future__ import annotations

from sparkdl_comm.ml.params.checkpoints import CheckpointKeywords, CheckpointParams
from sparkdl_comm.ml.params.cluster import ClusterKeywords, ClusterParams
from sparkdl_comm.ml.params.columns import ColumnKeywords, ColumnParams
from sparkdl_comm.ml.params.early_stopping import EarlyStoppingKeywords, EarlyStoppingParams
from sparkdl_comm.ml.params.optimization import OptimizationKeywords, OptimizationParams
from sparkdl_comm.ml.params.prediction import PredictionKeywords, PredictionParams
from sparkdl_comm.ml.params.training import TrainingKeywords, TrainingParams
from sparkdl_comm.ml.params.validation import ValidationKeywords, ValidationParams


class ParamKeywords(
    ColumnKeywords,
    ValidationKeywords,
    TrainingKeywords,
    OptimizationKeywords,
    EarlyStoppingKeywords,
    CheckpointKeywords,
    PredictionKeywords,
    ClusterKeywords,
    total=False,
):
    """Keywords of the constructor and of ``setParams``: every Param, and its snake_case spelling."""


class TorchParams(
    ColumnParams,
    ValidationParams,
    TrainingParams,
    OptimizationParams,
    EarlyStoppingParams,
    CheckpointParams,
    PredictionParams,
    ClusterParams,
):
    """Params shared by estimator and model. A Param set here overrides the session's conf."""
