"""The jar of what only benchmarks load into Spark (scala/bench); `make jar` builds it beside the plugin's."""

from pathlib import Path

import pyspark
from pyspark import SparkContext

from sparkdl_comm import plugin
from sparkdl_comm.errors import PluginError

_TARGET = Path(__file__).parents[1] / "scala" / "bench" / "target"


def bench_jar() -> Path:
    """The one for the pyspark in use. PluginError if it is not built."""
    name = plugin.jar_for(pyspark.__version__, plugin.JARS).name.replace("sparkdl-comm-", "sparkdl-comm-bench-", 1)
    found = next(_TARGET.glob(f"spark-*/{name}"), None)
    if found is None:
        raise PluginError(f"no {name} in {_TARGET}/spark-*: build it with `make jar`, from the repository")
    return found


def load_bench_jar(context: SparkContext) -> None:
    """Into a session that runs: its driver and its executors."""
    jar, jvm = bench_jar(), context._jvm
    context._jsc.addJar(str(jar))
    jvm.java.lang.Thread.currentThread().getContextClassLoader().addURL(jvm.java.io.File(str(jar)).toURI().toURL())
