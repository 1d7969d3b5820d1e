"""Alias of the model for pipelines that were saved when the class was in this module."""

from sparkdl_comm.ml.model import TorchModel as TorchModel
