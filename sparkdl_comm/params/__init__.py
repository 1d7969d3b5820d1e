"""Params of the estimator and the model, named as pyspark.ml and xgboost.spark name them; one file per concern."""

from __future__ import annotations

from .checkpoints import CheckpointKeywords, CheckpointParams
from .cluster import ClusterKeywords, ClusterParams
from .columns import ColumnKeywords, ColumnParams
from .early_stopping import EarlyStoppingKeywords, EarlyStoppingParams
from .optimization import OptimizationKeywords, OptimizationParams
from .prediction import PredictionKeywords, PredictionParams
from .training import TrainingKeywords, TrainingParams
from .validation import ValidationKeywords, ValidationParams


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
    """What estimator and model share. A Param set here overrides the session's conf."""
