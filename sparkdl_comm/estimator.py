"""Alias of the estimator for pipelines that were saved when the class was in this module."""

from sparkdl_comm.ml.estimator import TorchEstimator as TorchEstimator
