"""Deep learning on the Spark cluster you already have.

Names are imported when first used: an executor that needs one module of this package does not pay for the
others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors
    from .communicator import Communicator
    from .conf import CommConf
    from .distributor import CommDistributor
    from .estimator import TorchEstimator
    from .model import TorchModel
    from .report.loggers import MLflowLogger, TensorBoardLogger
    from .session import spark_conf
    from .train.callbacks import Callback

__version__ = "0.1.0"

__all__ = [
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
    "spark_conf",
]

_HOME = {
    "Callback": "train.callbacks",
    "CommConf": "conf",
    "CommDistributor": "distributor",
    "Communicator": "communicator",
    "MLflowLogger": "report.loggers",
    "TensorBoardLogger": "report.loggers",
    "TorchEstimator": "estimator",
    "TorchModel": "model",
    "spark_conf": "session",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module(".errors", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("." + _HOME[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
