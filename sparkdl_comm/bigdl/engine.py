"""BigDL's engine in a Spark session."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext

from sparkdl_comm.bigdl.installation import check_java, check_python, check_scala
from sparkdl_comm.errors import PluginError

_PYTHON_API = "sparkdl.comm.bigdl.PythonIBatch"


def start_engine(sc: SparkContext, executors: int, cores: int) -> None:
    """Start BigDL's engine, and register :class:`~sparkdl_comm.bigdl.optimizer.IBatchOptimizer` with BigDL's Python API.

    It replaces BigDL's ``init_engine``, which does not support every kind of master. It may be called repeatedly.

    :param executors: number of executors that train.
    :param cores: number of cores per executor; each core trains its own copy of the network.
    :raises PluginError: BigDL cannot run here, or jars of BigDL or of this package are not loaded.
    """
    check_python()
    jvm = sc._jvm
    assert jvm is not None, "BigDL needs a classic Spark session, not Spark Connect"
    check_java(jvm.java.lang.System.getProperty("java.version"))
    check_scala(jvm.scala.util.Properties.versionNumberString())
    for name in ("com.intel.analytics.bigdl.dllib.utils.Engine", _PYTHON_API):
        try:
            jvm.java.lang.Class.forName(name, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())
        except Py4JJavaError as exc:
            raise PluginError(
                f"class {name} is not loaded: start the session with sparkdl_comm.bigdl.installation.spark_conf(), or add the"
                " jars that it names to the class paths of driver and executors"
            ) from exc

    from bigdl.dllib.utils.common import JavaCreator

    if _PYTHON_API not in JavaCreator.get_creator_class():
        JavaCreator.add_creator_class(_PYTHON_API)
    jvm.com.intel.analytics.bigdl.dllib.utils.Engine.init(executors, cores, True)
    jvm.org.apache.spark.bigdl.api.python.BigDLSerDe.initialize()
