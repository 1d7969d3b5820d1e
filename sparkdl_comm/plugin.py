"""Jars of the Spark plugin, one for each line of Spark: selection of the jar, and checks of a session's settings."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from sparkdl_comm.errors import PluginError

CLASS = "sparkdl.comm.CommPlugin"
JARS = Path(__file__).parent / "jars"
#: Lines of Spark that the plugin is built for, as profiles of scala/pom.xml. The extra ``spark`` allows only these.
SPARK_LINES = ("3.5", "4.2")

_JAR = re.compile(r"sparkdl-comm-spark(?P<spark>[\d.]+)_(?P<scala>[\d.]+)-.*\.jar")


@contextlib.contextmanager
def needs_pyspark(what: str) -> Iterator[None]:
    """Raise a clear error if an import in this context fails because pyspark is missing.

    :param what: name of the feature, for people.
    :raises PluginError: pyspark is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise PluginError(
            f"{what} needs pyspark, which this Python ({sys.executable}) does not have. Install one with"
            " `pip install 'sparkdl_comm[spark]'`, or use the Python of your Spark, as spark-submit does"
        ) from None


def jar_for(spark_version: str, folder: Path) -> Path:
    """Return the newest plugin jar in ``folder`` for the line of Spark ``spark_version`` (its first two numbers).

    :raises PluginError: the plugin is not built for this line of Spark, or ``folder`` has no jar for it.
    """
    line = _minor(spark_version)
    if line not in SPARK_LINES:
        raise PluginError(
            f"pyspark {spark_version}: the plugin is built for Spark {' and '.join(SPARK_LINES)} only. Install a pyspark of"
            f" one of these lines, such as `pip install 'pyspark~={SPARK_LINES[-1]}.0'`"
        )
    jars = sorted(path for path in folder.glob("*.jar") if _JAR.fullmatch(path.name))
    fitting = [path for path in jars if _JAR.fullmatch(path.name)["spark"] == line]  # type: ignore[index]
    if not fitting:
        names = ", ".join(path.name for path in jars) or "no jar at all"
        raise PluginError(
            f"no plugin jar for Spark {line} in {folder}: there is {names}. Build the jars with "
            "`make jar` (Maven, JDK 17), or use a pyspark that one of these jars is for"
        )
    return fitting[-1]


def append_jar(given: str, jar: Path) -> str:
    """Return ``given``, a value of ``spark.jars``, with ``jar`` appended unless it has a jar of the plugin."""
    jars = [name.strip() for name in given.split(",") if name.strip()]
    has_plugin = any(_JAR.fullmatch(name.rsplit("/", 1)[-1]) for name in jars)
    return ",".join(jars if has_plugin else [*jars, str(jar)])


def is_loaded(conf: Mapping[str, str]) -> bool:
    """Return True if an application that started with these settings loads the plugin."""
    return CLASS in (name.strip() for name in conf.get("spark.plugins", "").split(","))


def check_conf(conf: Mapping[str, str], spark_version: str, scala_version: str | None) -> None:
    """Check settings for :func:`sparkdl_comm.job.session.check_plugin`.

    :raises PluginError: the plugin is not loaded, or its jar was built for another Spark or Scala.
    """
    if not is_loaded(conf):
        raise PluginError(
            f"the Spark plugin is not loaded: spark.plugins is {conf.get('spark.plugins') or 'not set'}, "
            f"without {CLASS}. Plugins are loaded when a session starts: stop this one, then "
            "SparkSession.builder.config(map=sparkdl_comm.spark_conf()).getOrCreate(), or spark-submit --jars "
            f"sparkdl-comm-….jar --conf spark.plugins={CLASS}. Without the plugin, set no strategy or one such as "
            "ring, and keep checkpoints on local paths that all executors share"
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


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
