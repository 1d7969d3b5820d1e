"""What a Spark session needs for this package, and the checks that it has it."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from .conf import KEYS, CommConf, as_text
from .errors import ConfError, InputError, PluginError, SlotsError

PLUGIN = "sparkdl.comm.CommPlugin"
JARS = Path(__file__).parent / "jars"

_log = logging.getLogger(__name__)

_JAR = re.compile(r"sparkdl-comm-spark(?P<spark>[\d.]+)_(?P<scala>[\d.]+)-.*\.jar")
_ARROW = "spark.sql.execution.arrow.pyspark.enabled"
_BARRIER_CHECK = "spark.scheduler.barrier.maxConcurrentTasksCheck.interval"
_ANY_PORT = 15002  # nothing is sent there
_ENCRYPTED = (
    "spark.network.crypto.enabled",
    "spark.ssl.rpc.enabled",
    "spark.ssl.enabled",
    "spark.authenticate.enableSaslEncryption",
)
_THREADS = "spark.executorEnv.OMP_NUM_THREADS"
_TASK_RESOURCE = re.compile(r"spark\.task\.resource\.(.+)\.amount")
#: Seconds of waiting for executors after which that is said.
_QUIET_SECONDS = 2.0
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


def spark_conf(**settings: object) -> dict[str, str]:
    """The settings a Spark session needs: ``SparkSession.builder.config(map=sparkdl_comm.spark_conf())``.

    The driver's JVM outlives the sessions of its Python process. If it runs already, it gets the jar too, so that the next
    session finds the plugin.

    :param settings: fields of :class:`~sparkdl_comm.conf.CommConf` by name, such as ``slot_timeout="2min"``; or
        ``slotTimeout``, as in the key.
    :return: the jar that fits the pyspark in use, the plugin, a one-second check for barrier slots (Spark's
        own default waits 15 s), Arrow, and ``settings`` under ``spark.sparkdl.comm.``.
    :raises PluginError: there is no jar for this Spark; says which there are and how to build one.
    :raises ConfError: an unknown setting or a bad value.
    """
    given, settings = settings, {}
    for name, value in given.items():
        field = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        if field in settings:
            raise ConfError(f"spark_conf: {field} given twice, by {' and '.join(given)}")
        settings[field] = value
    CommConf.from_mapping({}, **settings)
    jar = plugin_jar(pyspark.__version__, JARS)
    _add_to_running_jvm(jar)
    conf = {
        "spark.jars": str(jar),
        "spark.plugins": PLUGIN,
        _BARRIER_CHECK: "1s",
        _ARROW: "true",
    }
    conf.update({key.full: as_text(settings[key.field]) for key in KEYS if settings.get(key.field) is not None})
    return conf


def plugin_jar(spark_version: str, folder: Path) -> Path:
    """The newest plugin jar in ``folder`` for Spark ``spark_version`` (its first two numbers count)."""
    wanted = _minor(spark_version)
    jars = sorted(path for path in folder.glob("*.jar") if _JAR.fullmatch(path.name))
    fitting = [path for path in jars if _JAR.fullmatch(path.name)["spark"] == wanted]  # type: ignore[index]
    if not fitting:
        there = ", ".join(path.name for path in jars) or "no jar at all"
        raise PluginError(
            f"no plugin jar for Spark {wanted} in {folder}: there is {there}. Build the jars with "
            "`make jar` (Maven, JDK 17), or use a pyspark that one of these jars is for"
        )
    return fitting[-1]


def _add_to_running_jvm(jar: Path) -> None:
    """``spark.jars`` reaches the driver's class path only when its JVM starts."""
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    loader = gateway.jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if is_instance_of(gateway, loader, "org.apache.spark.util.MutableURLClassLoader"):
        loader.addURL(gateway.jvm.java.io.File(str(jar)).toURI().toURL())


def is_classic(spark: SparkSession) -> bool:
    """Whether the session has its driver's JVM in this process, unlike one of Spark Connect."""
    return hasattr(spark, "_jsparkSession")


def session_of(dataset: Any) -> SparkSession:
    """The session of a DataFrame of Spark. :class:`InputError` if it is something else."""
    if not hasattr(dataset, "sparkSession"):
        raise InputError(
            f"a Spark DataFrame is needed, not {type(dataset).__module__}.{type(dataset).__qualname__}; pandas' becomes one"
            " by spark.createDataFrame(...)"
        )
    return dataset.sparkSession


def use_own_python(spark: SparkSession) -> None:
    """Where driver and executors are on one machine (local, local-cluster), have tasks run by the driver's own Python, in
    place of whatever ``python3`` is on the PATH; unless the user named one, by PYSPARK_PYTHON or spark.pyspark.python."""
    if not is_classic(spark) or not (spark.sparkContext.master or "").startswith("local"):
        return
    named = os.environ.get("PYSPARK_PYTHON") or application_conf(spark).get("spark.pyspark.python")
    if not named and sys.executable:
        # The setting would come too late, as PySpark reads only the variable, and that once.
        spark.sparkContext.pythonExec = sys.executable


def session_conf(spark: SparkSession) -> dict[str, str]:
    """All settings of the session, those made at run time included. Runs no job."""
    return {row[0]: row[1] for row in spark.sql("SET").collect()}


def application_conf(spark: SparkSession) -> dict[str, str]:
    """The settings with which the application started: these decide about jars, plugins and executors."""
    return dict(spark.sparkContext.getConf().getAll()) if is_classic(spark) else session_conf(spark)


def driver_host(spark: SparkSession, conf: CommConf) -> str:
    """The name or address by which executors reach this process.

    :raises ConfError: the Spark Connect server's name does not resolve here.
    """
    if conf.driver_host:
        return conf.driver_host
    if is_classic(spark):
        return spark.conf.get("spark.driver.host") or "localhost"
    server = spark.client.host
    try:
        family, _, _, _, address = socket.getaddrinfo(server, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as towards:
            towards.connect(address)
            return towards.getsockname()[0]
    except OSError as error:
        raise ConfError(
            f"no address of this machine towards the Spark Connect server {server} ({error}); set "
            "spark.sparkdl.comm.driver.host to one that executors reach"
        ) from error


def driver_bind(spark: SparkSession) -> str | None:
    """Where Spark's driver listens, if that is set apart from the address by which executors reach it (NAT, containers)."""
    return application_conf(spark).get("spark.driver.bindAddress") if is_classic(spark) else None


def check_dynamic_allocation(spark: SparkSession) -> None:
    """:class:`ConfError` if executors may come and go: Spark does not run barrier stages then."""
    if application_conf(spark).get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        raise ConfError(
            "spark.dynamicAllocation.enabled=true: a gang of workers needs executors that stay. Start the "
            "session with spark.dynamicAllocation.enabled=false and spark.executor.instances set"
        )


def check_plugin(spark: SparkSession) -> None:
    """:class:`PluginError` if the plugin is not loaded, or its jar was built for another Spark or Scala."""
    scala = None
    if is_classic(spark):
        jvm: Any = spark.sparkContext._jvm
        scala = jvm.scala.util.Properties.versionNumberString()
    check_plugin_conf(application_conf(spark), spark.version, scala)


def check_plugin_conf(conf: Mapping[str, str], spark_version: str, scala_version: str | None) -> None:
    """The part of :func:`check_plugin` that depends on settings alone."""
    plugins = [name.strip() for name in conf.get("spark.plugins", "").split(",") if name.strip()]
    if PLUGIN not in plugins:
        raise PluginError(
            f"the Spark plugin is not loaded: spark.plugins is {','.join(plugins) or 'not set'}, "
            f"without {PLUGIN}. Plugins are loaded when a session starts: stop this one, then "
            "SparkSession.builder.config(map=sparkdl_comm.spark_conf()).getOrCreate(), or spark-submit --jars "
            f"sparkdl-comm-….jar --conf spark.plugins={PLUGIN}. Or choose a strategy that needs no plugin, such "
            "as gloo"
        )
    for jar in conf.get("spark.jars", "").split(","):
        match = _JAR.fullmatch(jar.strip().rsplit("/", 1)[-1])
        if match is None:
            continue
        scala = _minor(scala_version) if scala_version else match["scala"]
        if match["spark"] != _minor(spark_version) or match["scala"] != scala:
            raise PluginError(
                f"spark.jars has {match[0]}, built for Spark {match['spark']} and Scala {match['scala']}, "
                f"but this session is Spark {spark_version} and Scala {scala_version}. Use the jar that "
                "sparkdl_comm.spark_conf() names, in the Python environment of this Spark"
            )


def shared_directory(spark: SparkSession, path: str, param: str) -> str:
    """A directory as executors are to be told of it: a local path, or a URI for Hadoop, which needs the plugin there.

    :param path: as Spark takes it: without a scheme it lies in ``spark.hadoop.fs.defaultFS``.
    :param param: the Param that it comes from.
    :raises ConfError: there is no such file system, or a client of Spark Connect gave no scheme.
    :raises PluginError: the plugin is needed, and is not loaded, or is another Spark's.
    """
    if is_classic(spark):
        jvm: Any = spark.sparkContext._jvm
        try:
            given = jvm.org.apache.hadoop.fs.Path(path)
            hadoop = spark.sparkContext._jsc.hadoopConfiguration()
            path = given.getFileSystem(hadoop).makeQualified(given).toString()
        except Py4JJavaError as error:
            raise ConfError(f"{param}={path}: {error.java_exception.toString()}") from error
    elif not re.match(r"[A-Za-z][\w+.-]*:", path):
        raise ConfError(f"{param}={path}: begin it with the file system's scheme, such as file: or hdfs:")
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    check_plugin(spark)
    return path


def check_slots(
    spark: SparkSession,
    num_workers: int | None,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> int:
    """The number of workers: ``num_workers``, or one per slot of the cluster if that is None.

    A slot is room for one task (``spark.task.cpus`` cores, and GPUs if tasks ask for them). Executors that
    are still registering are waited for, at most ``timeout`` seconds.

    :raises SlotsError: fewer slots than workers; says how many there are and which settings give more.
    """
    if not is_classic(spark):  # it cannot ask for the executors there are; Spark itself counts before it starts ranks
        conf = session_conf(spark)
        wanted = num_workers or _expected_slots(conf, conf.get("spark.master", ""))
        if wanted is None:
            raise SlotsError(
                "num_workers: set it; a Spark Connect client cannot know the number of slots unless "
                "spark.executor.instances and spark.executor.cores are set"
            )
        return wanted
    master = spark.sparkContext.master or ""
    expected = _expected_slots(application_conf(spark), master)
    wanted = num_workers or expected or 1
    began, told = clock(), False
    slots = _slots(spark)
    while slots < wanted and clock() - began < timeout and not (expected and slots >= expected):
        if not told and clock() - began >= _QUIET_SECONDS:
            told = True
            _log.warning(
                "waiting for executors: %d slots of %d so far, for up to %g s (spark.sparkdl.comm.slotTimeout)",
                slots,
                wanted,
                timeout,
            )
        sleep(0.2)
        slots = _slots(spark)
    if slots < (num_workers or 1):
        conf = application_conf(spark)
        shown = ", ".join(
            f"{key}={conf.get(key, 'not set')}"
            for key in (
                "spark.executor.instances",
                "spark.executor.cores",
                "spark.cores.max",
                "spark.task.cpus",
                *(key for key in conf if ".resource." in key),
            )
        )
        raise SlotsError(
            f"num_workers={num_workers or 'all slots'}, but the cluster (master {master}) "
            f"has {slots} slots after {clock() - began:.1f} s (executors that are still to come are waited for up to "
            f"{timeout:g} s, spark.sparkdl.comm.slotTimeout). All workers must run at once: ask for fewer workers, or start "
            f"the session with more executors or cores. Now: {shown}"
        )
    return num_workers or slots


def tell_threads(spark: SparkSession, ranks: int) -> None:
    """Say so if ranks compute with fewer threads than there are cores for each of them: Spark has a task's Python compute with
    ``spark.task.cpus``."""
    conf = application_conf(spark)
    cpus = int(conf.get("spark.task.cpus", "1"))
    slots = [slots_now(spark), _expected_slots(_cores_only(conf), conf.get("spark.master", ""))]
    cores = max((count for count in slots if count is not None), default=ranks) * cpus
    if cores // ranks > cpus and _THREADS not in conf:
        _log.warning(
            "each of the %d ranks computes with %d of the %d cores there are for it: start the session with"
            " spark.task.cpus=%d, or with %s=%d",
            ranks,
            cpus,
            cores // ranks,
            cores // ranks,
            _THREADS,
            cores // ranks,
        )


def tell_clear(spark: SparkSession, what: str) -> None:
    """Say so if Spark is to encrypt what it sends: ``what`` travels between ranks and driver beside Spark, in clear."""
    conf = application_conf(spark)
    asked = [key for key in _ENCRYPTED if conf.get(key, "false").lower() == "true"]
    if asked:
        _log.warning(
            "%s=true is about what Spark sends: %s travel in clear, beside Spark. Use a network that you trust (README,"
            " Security)",
            asked[0],
            what,
        )


def _cores_only(conf: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in conf.items() if _TASK_RESOURCE.fullmatch(key) is None}


def slots_now(spark: SparkSession) -> int | None:
    """How many tasks the executors registered now can run at once; None: a Spark Connect client cannot know."""
    return _slots(spark) if is_classic(spark) else None


def executors(spark: SparkSession) -> set[str]:
    """Addresses of the executors that are registered now, each different from those of executors that are gone. Empty for a
    Spark Connect client, which cannot know."""
    if not is_classic(spark):
        return set()
    context: Any = spark.sparkContext._jsc.sc()
    return set(context.getExecutorMemoryStatus().keys().mkString(" ").split())


def _slots(spark: SparkSession) -> int:
    """Tasks of the default resource profile that the executors registered now can run at once."""
    context: Any = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def _expected_slots(conf: Mapping[str, str], master: str) -> int | None:
    """Slots there will be once all executors are there, as far as the settings tell."""
    cluster = _LOCAL_CLUSTER.fullmatch(master.strip())
    if cluster:
        return int(cluster[1]) * _slots_per_executor(conf, conf.get("spark.executor.cores", cluster[2]))
    if master.startswith("local"):
        return 1
    if "spark.executor.instances" in conf and "spark.executor.cores" in conf:
        return int(conf["spark.executor.instances"]) * _slots_per_executor(conf, conf["spark.executor.cores"])
    return None


def _slots_per_executor(conf: Mapping[str, str], cores: str) -> int:
    """By its cores and by its GPUs, or other resources, of which a task may take a fraction."""
    slots = [int(cores) // int(conf.get("spark.task.cpus", "1"))]
    for key, text in conf.items():
        resource = _TASK_RESOURCE.fullmatch(key)
        if resource is not None and float(text) > 0:
            there, taken = int(conf.get(f"spark.executor.resource.{resource[1]}.amount", "0")), float(text)
            slots.append(there * int(1 / taken) if taken < 1 else there // int(taken))
    return min(slots)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
