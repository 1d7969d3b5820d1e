"""Location of BigDL and of this package's adapter for it, checks that they can run here, and the start of BigDL's engine."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pyspark
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext

from sparkdl_comm import plugin
from sparkdl_comm.errors import PluginError

_PYTHON_API = "sparkdl.comm.bigdl.PythonIBatch"
#: The first numpy whose C API BigDL's Python API cannot use.
_FIRST_UNSUPPORTED_NUMPY = (2, 3)
_ADAPTER_PATTERN = "sparkdl-comm-bigdl-spark*.jar"
_LAST_JAVA = 17
#: Spark's default log settings. BigDL's jar contains log settings of its own, which log every task to standard output.
_LOG4J_OPTION = "-Dlog4j2.configurationFile=org/apache/spark/log4j2-defaults.properties"


def check_python(numpy_version: str = np.__version__, spark_version: str = pyspark.__version__) -> None:
    """Raise PluginError if BigDL is not installed, or cannot run with this numpy or on this Spark."""
    if not spark_version.startswith("3.5."):
        raise PluginError(
            f"BigDL 2.4.0 runs on Spark 3.5 with Scala 2.12, for which it is compiled, but this is Spark {spark_version}"
        )
    major, minor = map(int, re.findall(r"\d+", numpy_version)[:2])
    if (major, minor) >= _FIRST_UNSUPPORTED_NUMPY:
        raise PluginError(
            f"BigDL's Python API needs numpy below 2.3, and this is numpy {numpy_version}: pip install 'numpy<2.3'"
        )
    if importlib.util.find_spec("bigdl") is None:
        raise PluginError(
            "BigDL is not installed: pip install --no-deps bigdl-dllib-spark3==2.4.0 bigdl-core==2.3.0 six, or `make bigdl`"
            " and build/bigdl on the PYTHONPATH"
        )


def check_java(java_version: str) -> None:
    """Raise PluginError if BigDL cannot run on this Java."""
    numbers = re.findall(r"\d+", java_version)
    major = int(numbers[1] if numbers[0] == "1" else numbers[0])
    if major > _LAST_JAVA:
        raise PluginError(
            f"BigDL 2.4.0 runs on Java up to {_LAST_JAVA}, and this is Java {java_version}: set JAVA_HOME"
        )


def check_scala(scala_version: str) -> None:
    """Raise PluginError if Spark is compiled for another Scala than BigDL."""
    if not scala_version.startswith("2.12."):
        raise PluginError(
            f"BigDL 2.4.0 is compiled for Scala 2.12, and this Spark is for Scala {scala_version}: take a build of Spark 3.5"
            " for Scala 2.12"
        )


def java_version() -> str | None:
    """Return the Java version of JAVA_HOME, or of the ``java`` on the PATH: the JVM that PySpark starts. None if unknown."""
    program = shutil.which("java")
    home = os.environ.get("JAVA_HOME") or (program and Path(program).resolve().parents[1])
    try:
        match = re.search(r'^JAVA_VERSION="(.+)"', Path(home, "release").read_text(), re.MULTILINE) if home else None
    except OSError:
        return None
    return match[1] if match else None


def jars(folder: Path = plugin.JARS) -> list[Path]:
    """Return the jars of this package's plugin and adapter, in ``folder``, and BigDL's own two jars, in its Python packages.

    :raises PluginError: a jar is missing.
    """
    check_python()
    adapters = sorted(folder.glob(_ADAPTER_PATTERN))
    if not adapters:
        raise PluginError(f"no jar {_ADAPTER_PATTERN} in {folder}: `make bigdl-jar` builds it")
    spec = importlib.util.find_spec("bigdl")
    homes = list(spec.submodule_search_locations or []) if spec is not None else []
    bigdl_jars = sorted(path for home in homes for path in Path(home).glob("share/*/lib/*.jar"))
    if len(bigdl_jars) < 2:
        raise PluginError(f"BigDL has {len(bigdl_jars)} of its 2 jars: install both bigdl-dllib-spark3 and bigdl-core")
    return [plugin.jar_for(pyspark.__version__, folder), adapters[-1], *bigdl_jars]


def spark_conf(folder: Path = plugin.JARS) -> dict[str, str]:
    """Return Spark settings that load :func:`jars` and the plugin on driver and executors, and settings that BigDL needs.

    The jars must have the same paths on all hosts. Apply these settings after those of ``sparkdl_comm.spark_conf(...)``, if
    you use both.

    :raises PluginError: a jar is missing (see :func:`jars`), or BigDL cannot run on this Java.
    """
    if version := java_version():
        check_java(version)  # on a Java that is much too new, no session starts, and no error says why
    path = os.pathsep.join(map(str, jars(folder)))
    return {
        "spark.jars": "",
        "spark.plugins": plugin.CLASS,
        "spark.driver.extraClassPath": path,
        "spark.executor.extraClassPath": path,
        "spark.driver.extraJavaOptions": _LOG4J_OPTION,
        "spark.executor.extraJavaOptions": _LOG4J_OPTION,
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.speculation": "false",
        "spark.serializer": "org.apache.spark.serializer.JavaSerializer",
        "spark.executorEnv.OMP_NUM_THREADS": "1",
    }


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
