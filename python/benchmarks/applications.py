"""Spark applications of benchmarks: programs for a cluster of the lab, and sessions on this machine.

A submitted program has a job, a dataclass of JSON values. The benchmark calls :func:`submit` with both. The program
ends with :func:`answer`, whose results ``submit`` returns. Mostly the program is the benchmark's own file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyspark
from lab import Lab
from lab.failure import excerpt
from lab.rates import LinkRate
from lab.spark import SparkCluster

import sparkdl_comm
from sparkdl_comm import plugin
from sparkdl_comm.errors import LabError, PluginError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

J = TypeVar("J")
#: Folder of BigDL, where `make bigdl` installs it.
BIGDL = Path(__file__).resolve().parents[2] / "build" / "bigdl"
_BENCH_JARS = Path(__file__).parents[2] / "scala" / "bench" / "target"


def submit(
    spark: SparkCluster,
    program: Path,
    job: Any,
    timeout: float,
    conf: Mapping[str, str] | None = None,
    *,
    has_plugin: bool = True,
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Run ``program`` on the whole cluster. Return the job's results.

    :param conf: further settings of Spark.
    :param has_plugin: with this package's plugin and its settings.
    :param environment: variables of the driver, added to the cluster's.
    :raises LabError: it failed. The text has the first exception, the last cause and the end of its output.
    """
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "WARN"}
    settings |= sparkdl_comm.spark_conf(progress=False, slot_timeout="2min") if has_plugin else {}
    with tempfile.TemporaryDirectory(prefix="sparkdl-application-") as folder:
        output = Path(folder, "results")
        done = spark.submit(
            [
                *(f"--conf={key}={value}" for key, value in {**settings, **(conf or {})}.items()),
                *(str(program), json.dumps(asdict(job)), str(output)),
            ],
            timeout=timeout,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise LabError(f"{program.name} ended with status {done.returncode}: {excerpt(done.stdout)}")
        return [json.loads(line) for line in output.read_text().splitlines()]


def answer(name: str, kind: type[J], results: Callable[[SparkSession, J], Iterable[Mapping[str, Any]]]) -> None:
    """Call ``results`` with a session of this name and the job, in a submitted program.

    Each result is written at once, as a line of JSON.
    """
    from pyspark.sql import SparkSession

    job, output = kind(**json.loads(sys.argv[1])), Path(sys.argv[2])
    spark = SparkSession.builder.appName(name).getOrCreate()
    with output.open("w", encoding="utf-8") as file:
        for result in results(spark, job):
            print(json.dumps(result), file=file, flush=True)
    spark.stop()


def local_cluster(name: str, executors: int, memory: int, conf: Mapping[str, str]) -> SparkSession:
    """Return a session with this number of executors, JVMs of one core and ``memory`` MiB on this machine."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.master": f"local-cluster[{executors},1,{memory}]",
        "spark.executor.memory": f"{memory}m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **conf,
    }
    spark = SparkSession.builder.appName(name).config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def python_path(*folders: Path) -> str:
    """Return PYTHONPATH with these folders in front."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


def set_rate(lab: Lab, rate: float) -> None:
    """Set the rate of all links, bit/s, both ways."""
    link = LinkRate(round(rate), round(rate))
    lab.set_rates({(host.index, rail): link for host in lab.topology.hosts for rail in range(lab.topology.rails)})


@contextmanager
def crossing(lab: Lab, necessary: int) -> Iterator[None]:
    """Check by the links' counters that the body's traffic crosses the links of the first rail.

    :param necessary: bytes that every host but the root must receive, by any algorithm.
    :raises LabError: a host received less.
    """
    before = lab.counters()
    yield
    after = lab.counters()
    for host in lab.topology.hosts[1:]:
        received = after[host.index, 0].received - before[host.index, 0].received
        if received < necessary:
            raise LabError(f"host {host.index} received {received:,} bytes over its link, and needs {necessary:,}")


def bench_jar() -> Path:
    """Return the jar of scala/bench, which only benchmarks load, for the installed pyspark.

    :raises PluginError: it is not built. `make jar` builds it.
    """
    name = plugin.jar_for(pyspark.__version__, plugin.JARS).name.replace("sparkdl-comm-", "sparkdl-comm-bench-", 1)
    found = next(_BENCH_JARS.glob(f"spark-*/{name}"), None)
    if found is None:
        raise PluginError(f"no {name} in {_BENCH_JARS}/spark-*: build it with `make jar`, from the repository")
    return found


def load_bench_jar(context: SparkContext) -> None:
    """Load the jar of scala/bench into the driver and the executors of a running session."""
    jar, jvm = bench_jar(), context._jvm
    context._jsc.addJar(str(jar))
    jvm.java.lang.Thread.currentThread().getContextClassLoader().addURL(jvm.java.io.File(str(jar)).toURI().toURL())
