"""BigDL (DLlib) models, trained with this package's parameter server.

- :mod:`.installation`: location of BigDL and of this package's adapter, checks that they can run here, BigDL's engine
- :mod:`.optimizer`: ``IBatchOptimizer``, a replacement of BigDL's ``DistriOptimizer``
- :mod:`.estimator`: ``BigDLEstimator``, which fits a model to a DataFrame, and ``BigDLModel``, the fitted model
- :mod:`.networks`: example networks

BigDL 2.4.0 runs on Spark 3.5 with Scala 2.12 and Java up to 17. Its Python API needs numpy below 2.3. It pins older versions
of other packages than this package runs with, so install it with
``pip install --no-deps bigdl-dllib-spark3==2.4.0 bigdl-core==2.3.0 six``.

Names of this module are imported when first used, after a check of these versions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkdl_comm import plugin

if TYPE_CHECKING:
    from sparkdl_comm.bigdl.estimator import BigDLEstimator, BigDLModel
    from sparkdl_comm.bigdl.installation import spark_conf, start_engine
    from sparkdl_comm.bigdl.optimizer import IBatchOptimizer

__all__ = ["BigDLEstimator", "BigDLModel", "IBatchOptimizer", "spark_conf", "start_engine"]

_MODULES = {
    "BigDLEstimator": "estimator",
    "BigDLModel": "estimator",
    "IBatchOptimizer": "optimizer",
    "spark_conf": "installation",
    "start_engine": "installation",
}


def __getattr__(name: str) -> Any:
    """Import a name of ``__all__``.

    :raises PluginError: pyspark or BigDL is not installed, or cannot run here.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with plugin.needs_pyspark(f"sparkdl_comm.bigdl.{name}"):
        if _MODULES[name] in ("estimator", "optimizer"):
            import_module(".installation", __name__).check_python()
        return getattr(import_module("." + _MODULES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
