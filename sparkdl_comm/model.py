"""Where pipelines that were saved before the package had rooms look for the class."""

from sparkdl_comm.ml.model import TorchModel as TorchModel
