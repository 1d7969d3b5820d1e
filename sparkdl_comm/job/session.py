"""Settings that a Spark session needs for this package, and checks of a session."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from sparkdl_comm import plugin
from sparkdl_comm.conf import KEYS, PREFIX, CommConf, as_text
from sparkdl_comm.conf.forms import snake_case
from sparkdl_comm.errors import ConfError, InputError, PersistenceError, PluginError
from sparkdl_comm.storage.session import DriverStorage

_log = logging.getLogger(__name__)

_ARROW = "spark.sql.execution.arrow.pyspark.enabled"
_BARRIER_CHECK = "spark.scheduler.barrier.maxConcurrentTasksCheck.interval"
#: Port of the JVM, set by spark-submit in the Python process that it starts.
_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
_ANY_PORT = 15002  # nothing is sent there
_ENCRYPTED = (
    "spark.network.crypto.enabled",
    "spark.ssl.rpc.enabled",
    "spark.ssl.enabled",
    "spark.authenticate.enableSaslEncryption",
)


def spark_conf(**settings: object) -> dict[str, str]:
    """Return the settings that a Spark session needs: ``SparkSession.builder.config(map=sparkdl_comm.spark_conf())``.

    The driver's JVM outlives the sessions of its Python process, and spark-submit starts it before that process. If the
    JVM runs already, this function also adds the jar to it, so that the next session finds the plugin.

    :param settings: settings under ``spark.sparkdl.comm.``. The name of each is that of its key, in camel case or in
        snake case: both ``slotTimeout="2min"`` and ``slot_timeout="2min"`` set ``slotTimeout``. ``ps_wire`` sets
        ``ps.wire`` (see :attr:`~sparkdl_comm.conf.forms.Key.argument`).
    :return: the jar that fits the pyspark in use, the plugin, a one-second check for barrier slots (Spark's default
        waits 15 s), Arrow, and ``settings`` under ``spark.sparkdl.comm.``.
    :raises PluginError: there is no jar for this Spark. The message lists the jars, and how to build one. Or the
        running JVM does not accept the jar. Then the message says what to pass to spark-submit.
    :raises ConfError: an unknown setting or a bad value.
    """
    given, settings = settings, {}
    for name, value in given.items():
        argument = snake_case(name)
        if argument in settings:
            raise ConfError(f"spark_conf: {argument} is given twice, by {' and '.join(given)}")
        settings[argument] = value
    CommConf.from_mapping({}, **settings)
    conf = {
        "spark.jars": _add_jar(plugin.jar_for(pyspark.__version__, plugin.JARS)),
        "spark.plugins": plugin.CLASS,
        _BARRIER_CHECK: "1s",
        _ARROW: "true",
    }
    conf.update({key.full: as_text(settings[key.argument]) for key in KEYS if settings.get(key.argument) is not None})
    return conf


def _add_jar(jar: Path) -> str:
    """Return ``spark.jars`` with ``jar`` in it. If the driver's JVM runs already, first add ``jar`` to its class
    loader.

    A JVM reads ``spark.jars`` into its class path only when it starts. spark-submit has started the JVM before this
    process, with jars that the session has to keep.

    :raises PluginError: the JVM cannot load the jar. The message says what to pass to spark-submit.
    """
    submitted = _GATEWAY_PORT in os.environ
    if submitted:
        SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return str(jar)
    loader = gateway.jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if is_instance_of(gateway, loader, "org.apache.spark.util.MutableURLClassLoader"):
        loader.addURL(gateway.jvm.java.io.File(str(jar)).toURI().toURL())
    try:
        loader.loadClass(plugin.CLASS)
    except Py4JJavaError as error:
        raise PluginError(
            f"the driver's JVM runs already, and its class loader accepts no more jars. Pass spark-submit --jars {jar}"
            f" --conf spark.plugins={plugin.CLASS}"
        ) from error
    given = (gateway.jvm.java.lang.System.getProperty("spark.jars") if submitted else None) or ""
    return plugin.append_jar(given, jar)


def is_classic(spark: SparkSession) -> bool:
    """Return whether this process has a driver's JVM, unlike a Spark Connect client."""
    return hasattr(spark, "_jsparkSession")


def session_of(dataset: Any) -> SparkSession:
    """Return the session of a Spark DataFrame.

    :raises InputError: ``dataset`` is not a Spark DataFrame, or its session is stopped.
    """
    if not hasattr(dataset, "sparkSession"):
        raise InputError(
            f"a Spark DataFrame is needed, not {type(dataset).__module__}.{type(dataset).__qualname__}. Convert a pandas"
            " DataFrame with spark.createDataFrame(...)"
        )
    if is_stopped(dataset.sparkSession):
        raise InputError(
            "the DataFrame's Spark session is stopped. Start one with"
            " SparkSession.builder.config(map=sparkdl_comm.spark_conf()).getOrCreate(), and create the DataFrame in it"
        )
    spark: SparkSession = dataset.sparkSession
    return spark


def active_session() -> SparkSession:
    """Return the active session.

    :raises InputError: there is none, or it is stopped.
    """
    try:
        spark = SparkSession.active()
    except PySparkRuntimeError:
        spark = None
    if spark is None or is_stopped(spark):
        raise InputError(
            "no Spark session runs. Start one with"
            " SparkSession.builder.config(map=sparkdl_comm.spark_conf()).getOrCreate()"
        )
    return spark


def is_stopped(spark: SparkSession) -> bool:
    """Return whether the session's application has ended, or its JVM is gone."""
    if not is_classic(spark):
        return bool(spark.is_stopped)  # type: ignore[attr-defined]
    context: Any = spark.sparkContext._jsc
    try:
        return context is None or context.sc().isStopped()
    except Py4JError:
        return True


def use_driver_python(spark: SparkSession) -> None:
    """Let tasks use the driver's own Python if driver and executors are on one machine (local, local-cluster).

    Otherwise they would use the first ``python3`` on the PATH. A Python that the user has named (PYSPARK_PYTHON or
    spark.pyspark.python) stays.
    """
    if not is_classic(spark) or not (spark.sparkContext.master or "").startswith("local"):
        return
    named = os.environ.get("PYSPARK_PYTHON") or application_conf(spark).get("spark.pyspark.python")
    if not named and sys.executable:
        # The setting would have no effect now: PySpark reads only the variable, and only once.
        spark.sparkContext.pythonExec = sys.executable


def session_conf(spark: SparkSession) -> dict[str, str]:
    """Return all settings of the session, including those made at run time. Runs no job."""
    return {row[0]: row[1] for row in spark.sql("SET").collect()}


def application_conf(spark: SparkSession) -> dict[str, str]:
    """Return the settings with which the application started. They decide on jars, plugins and executors."""
    return dict(spark.sparkContext.getConf().getAll()) if is_classic(spark) else session_conf(spark)


def driver_host(spark: SparkSession, conf: CommConf) -> str:
    """Return the name or address by which executors reach this process.

    :raises ConfError: the Spark Connect server's name does not resolve here.
    """
    if conf.driver.host:
        return conf.driver.host
    if is_classic(spark):
        return spark.conf.get("spark.driver.host") or "localhost"
    server = spark.client.host
    try:
        family, _, _, _, address = socket.getaddrinfo(server, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as towards:
            towards.connect(address)
            own_address: str = towards.getsockname()[0]
            return own_address
    except OSError as error:
        raise ConfError(
            f"this machine has no address towards the Spark Connect server {server} ({error}). Set "
            "spark.sparkdl.comm.driver.host to an address of this machine that executors reach"
        ) from error


def driver_bind(spark: SparkSession) -> str | None:
    """Return the address on which Spark's driver listens, if it is set separately from the one that executors use (NAT,
    containers).
    """
    return application_conf(spark).get("spark.driver.bindAddress") if is_classic(spark) else None


def check_dynamic_allocation(spark: SparkSession) -> None:
    """Check that dynamic allocation is off. With it, Spark runs no barrier stages.

    :raises ConfError: dynamic allocation is on.
    """
    if application_conf(spark).get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        raise ConfError(
            "spark.dynamicAllocation.enabled=true: a gang of workers needs executors that stay. Start the "
            "session with spark.dynamicAllocation.enabled=false and spark.executor.instances set"
        )


def check_plugin(spark: SparkSession) -> None:
    """Check that the plugin is loaded.

    :raises PluginError: it is not, or its jar was built for another Spark or Scala.
    """
    scala = None
    if is_classic(spark):
        jvm: Any = spark.sparkContext._jvm
        scala = jvm.scala.util.Properties.versionNumberString()
    plugin.check_conf(application_conf(spark), spark.version, scala)


def shared_directory(spark: SparkSession, path: str, param: str) -> str:
    """Return a directory in the form that executors use: a local path, or a Hadoop URI, which needs the plugin.

    :param path: as in Spark: without a scheme it is in ``spark.hadoop.fs.defaultFS``.
    :param param: the Param that has this value.
    :raises ConfError: there is no such file system, or a client of Spark Connect gave no scheme.
    :raises PluginError: the plugin is needed, and is not loaded, or was built for another Spark.
    """
    if is_classic(spark):
        try:
            path = DriverStorage(spark).qualify(path)
        except PersistenceError as error:
            raise ConfError(f"{param}={path}: {error.message}") from error
    elif not re.match(r"[A-Za-z][\w+.-]*:", path):
        raise ConfError(f"{param}={path}: begin it with the file system's scheme, such as file: or hdfs:")
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    check_plugin(spark)
    return path


def check_disk_cache(spark: SparkSession, conf: CommConf) -> None:
    """Check the settings of the rows' cache.

    :raises ConfError: rows go to executors' disks, but Spark has to encrypt disks. Or their memory is limited, but they
        are in memory only.
    """
    if conf.data.cache != "disk" and not conf.data.cache_name:
        if conf.data.memory_limit:
            raise ConfError(
                f"{PREFIX}data.memoryLimit={conf.data.memory_limit} applies to rows on disks, but with"
                f" {PREFIX}data.cache={conf.data.cache} all rows are in memory. Set data.cache=disk, or no limit"
            )
    elif application_conf(spark).get("spark.io.encryption.enabled", "").lower() == "true":
        raise ConfError(
            f"{PREFIX}data.cache=disk and data.cacheName write rows to executors' disks unencrypted, but"
            " spark.io.encryption.enabled=true. Set data.cache=memory, and no cacheName"
        )


def warn_unencrypted(spark: SparkSession, what: str) -> None:
    """Warn if Spark has to encrypt its traffic, because traffic outside of Spark is not encrypted.

    :param what: name of the unencrypted traffic between ranks and driver, for the message.
    """
    conf = application_conf(spark)
    asked = [key for key in _ENCRYPTED if conf.get(key, "false").lower() == "true"]
    if asked:
        _log.warning(
            "%s=true encrypts only what Spark sends. Not encrypted: %s. Use a network that you trust (docs: Security)",
            asked[0],
            what,
        )
