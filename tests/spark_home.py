"""Where Spark applications of the tests run, and how their JVMs start.

JVMs live for minutes at most here. They compile quickly rather than well, and load Spark's classes from an archive if
``make`` has dumped one (:mod:`tests.class_archive`), which saves a third of an application's processor time. An archive
is good for one class path, so all applications on one Spark get the same, whatever their SPARK_HOME is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

ROOT = Path(__file__).parents[1]
SPARK = Path(pyspark.__file__).parent
SPARK4 = ROOT / ".spark4"

_DEFAULTS = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.daemon.module": "sparkdl_comm.daemon",
}


def archive(spark: Path = SPARK) -> Path:
    """Where the classes of a Spark package are."""
    return ROOT / "build" / "tests" / ("spark4.jsa" if spark == SPARK4 / "pyspark" else "spark3.jsa")


def class_path(spark: Path = SPARK) -> str:
    """Options of a JVM. The last class path counts. What is wrong with an archive is no reason to write to stdout."""
    return f"-cp {spark}/jars/* -Xlog:disable -Xlog:all=error:stderr"


def environment(folder: Path, spark: Path = SPARK) -> dict[str, str]:
    """Environment variables of an application whose executors write their logs to ``folder``; ``spark``: its package."""
    home = folder / "spark-home"
    home.mkdir(parents=True)
    for part in ("bin", "jars", "python"):
        (home / part).symlink_to(spark / part)
    return {
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(conf_directory(folder, spark)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # executors unpickle by name what tests define
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def conf_directory(folder: Path, spark: Path = SPARK) -> Path:
    """In ``folder``, with the defaults of all applications."""
    defaults = dict(_DEFAULTS)
    if archive(spark).exists():
        for end in ("driver", "executor"):
            defaults[f"spark.{end}.defaultJavaOptions"] += (
                f" {class_path(spark)} -XX:SharedArchiveFile={archive(spark)}"
            )
    directory = folder / "spark-conf"
    directory.mkdir()
    (directory / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in defaults.items()))
    return directory
