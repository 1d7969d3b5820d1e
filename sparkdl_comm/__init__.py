"""Deep learning on the Spark cluster you already have.

Names are imported when first used. So an executor that needs one module of this package does not load the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkdl_comm import plugin

if TYPE_CHECKING:
    from sparkdl_comm import errors, optim
    from sparkdl_comm.collectives.communicator import Communicator
    from sparkdl_comm.conf import CommConf
    from sparkdl_comm.data.ragged import Arguments
    from sparkdl_comm.distributor import CommDistributor
    from sparkdl_comm.job.session import spark_conf
    from sparkdl_comm.ml.estimator import TorchEstimator
    from sparkdl_comm.ml.model import TorchModel
    from sparkdl_comm.report.loggers import MLflowLogger, TensorBoardLogger
    from sparkdl_comm.train.callbacks import Callback

__version__ = "0.1.0"

__all__ = [
    "Arguments",
    "Callback",
    "CommConf",
    "CommDistributor",
    "Communicator",
    "MLflowLogger",
    "TensorBoardLogger",
    "TorchEstimator",
    "TorchModel",
    "__version__",
    "errors",
    "optim",
    "spark_conf",
]

_HOME = {
    "Arguments": "data.ragged",
    "Callback": "train.callbacks",
    "CommConf": "conf",
    "CommDistributor": "distributor",
    "Communicator": "collectives.communicator",
    "MLflowLogger": "report.loggers",
    "TensorBoardLogger": "report.loggers",
    "TorchEstimator": "ml.estimator",
    "TorchModel": "ml.model",
    "spark_conf": "job.session",
}


def __getattr__(name: str) -> Any:
    """Import a public name.

    :raises PluginError: the name needs pyspark, which is not installed.
    """
    if name in ("errors", "optim"):
        return import_module("." + name, __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with plugin.needs_pyspark(f"sparkdl_comm.{name}"):
        return getattr(import_module("." + _HOME[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
