"""Where pipelines that were saved before the package had rooms look for the class."""

from sparkdl_comm.ml.estimator import TorchEstimator as TorchEstimator
