"""Spark applications that benchmarks submit to a cluster of the lab."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import sparkdl_comm
from sparkdl_comm.errors import LabError
from sparkdl_comm.lab.spark import SparkCluster

_LOG_TAIL = 3000


def submit(
    spark: SparkCluster, program: Path, argument: str, timeout: float, conf: Mapping[str, str] | None = None
) -> None:
    """Runs ``program`` with one argument to its end, on all of the cluster.

    :param conf: of Spark, beside what the plugin needs.
    :raises LabError: it failed; with the end of what it printed.
    """
    settings = sparkdl_comm.spark_conf(progress=False, slot_timeout="2min")
    settings |= {
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        "spark.ui.showConsoleProgress": "false",
        **(conf or {}),
    }
    arguments = [*(f"--conf={key}={value}" for key, value in settings.items()), str(program), argument]
    done = spark.submit(arguments, timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise LabError(f"{program.name} ended with status {done.returncode}: {done.stdout[-_LOG_TAIL:]}")
