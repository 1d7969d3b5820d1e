"""One Spark application for all tests: three executors, each a JVM of its own with one core.

Tests that break executors start an application of their own, in a process of their own: a JVM has only one.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import command
from lab import access
from lab.results import FIELDS
from xdist.scheduler import LoadScopeScheduling

import sparkdl_comm
from sparkdl_comm.errors import LabUnavailableError, PluginError
from tests import seeds

#: Machines with GPUs may have none, for which tests/gpu is.
HAS_SPARK = importlib.util.find_spec("pyspark") is not None
if HAS_SPARK:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from sparkdl_comm import plugin
    from tests import spark_home
if importlib.util.find_spec("hypothesis") is not None:
    from tests import draws  # noqa: F401 - it loads the profile

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def _mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mounted")


@pytest.fixture
def hadoop_path(_mounted: Path, tmp_path: Path) -> tuple[str, Path]:
    """A directory of this test's own, as executors and driver reach it through Hadoop, and as it lies on the disk.

    It is not ``file:``, which a plain ``open`` could pass for; it is not there yet.
    """
    return f"viewfs://tests/mounted/{tmp_path.name}", _mounted / tmp_path.name


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also of the programs that tests start."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    if HAS_SPARK:
        os.environ.update(spark_home.environment(tmp_path_factory.mktemp("spark")))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, _mounted: Path) -> Iterator[SparkSession]:
    """``local-cluster[3,1,1024]`` with the plugin; without it, and with a warning, where no jar has been built."""
    conf = {
        "spark.master": "local-cluster[3,1,1024]",
        "spark.app.name": "sparkdl_comm tests",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.task.maxFailures": "1",  # a task that fails on purpose does so once
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sparkdl.comm.progress": "false",
        "spark.sparkdl.comm.timeout": "2min",  # the rank that waits tells for whom before the test's deadline ends it
        "spark.hadoop.fs.viewfs.mounttable.tests.link./mounted": _mounted.as_uri(),
    }
    try:
        conf.update(sparkdl_comm.spark_conf(progress=False, strategy="ps"))  # also for small models
    except PluginError as error:
        warnings.warn(str(error), stacklevel=1)
    session = SparkSession.builder.config(map=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


_SPARK_USED = re.compile(r'^(def .*|    )\bspark(: SparkSession|: Any)?[,)]|usefixtures\("spark"', re.MULTILINE)


class _Scheduling(LoadScopeScheduling):
    """A process gets whole files; one gets all faults, which share an application, and one all that makes networks."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0].removeprefix("tests/")
        folder = path.partition("/")[0]
        drawn = re.search(r"test_fuzz.py::test_fault\[(\d+):", nodeid)
        cluster = int(drawn[1]) % seeds.STRIDE // 1000 if drawn else 0
        if cluster:  # drawn faults on other clusters than the first: each has an application of its own
            return f"faults on cluster {cluster}"
        return folder if folder in ("faults", "networks") else path

    def _assign_work_unit(self, node: Any) -> None:
        """The process of the faults has their application, and gets files that need no other while there are any."""
        if "faults" in self.assigned_work[node]:
            without = next((scope for scope in self.workqueue if not _uses_spark(scope)), None)
            if without:
                self.workqueue.move_to_end(without, last=False)
        super()._assign_work_unit(node)


def _uses_spark(scope: str) -> bool:
    """Whether a function of the file has the fixture as its parameter."""
    path = ROOT / "tests" / scope
    return path.is_file() and _SPARK_USED.search(path.read_text()) is not None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Scheduling(config, log)


def pytest_report_header() -> str:
    return seeds.header()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test draws without a seed of its own does not depend on the tests before it."""
    seeds.seed_generators()


def pytest_configure() -> None:
    gc.disable()  # until all modules are loaded, of which nothing is garbage


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries complain of what is left at the end


def pytest_exception_interact(call: pytest.CallInfo[None]) -> None:
    """One failure stays one: after a call to the JVM that a test's deadline interrupted, the next would read its answer."""
    context = SparkContext._active_spark_context if HAS_SPARK else None
    if context is None or isinstance(call.excinfo.value, Exception):
        return
    connection = context._gateway._gateway_client.get_thread_connection()
    if connection is not None:
        connection.close()
    context.cancelAllJobs()


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a benchmark with options that it must refuse, and returns what it says."""

    def call(name: str, *arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            sys.exit(command.main([name, *arguments]))
        assert ended.value.code == 2
        return capsys.readouterr().err

    return call


@pytest.fixture
def rows_of() -> Callable[..., list[dict[str, Any]]]:
    """Runs a benchmark, as a user does who is in a hurry, and returns the rows that it prints. All must be verified."""

    def run(name: str, *arguments: str, timeout: float = 280) -> list[dict[str, Any]]:
        program = [sys.executable, str(command.PAGES), name, "--quick", "--json", *arguments]
        done = subprocess.run(program, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, done.stderr
        rows = list(json.loads(done.stdout))
        assert all(list(row)[: len(FIELDS)] == list(FIELDS) and row["verified"] is True for row in rows)
        return rows

    return run


@pytest.fixture(scope="session")
def bigdl() -> Path:
    """Where BigDL's Python packages are. Skips where they are not, or the adapter for them is not built."""
    folder = ROOT / "build" / "bigdl"
    if not (folder / "bigdl").exists() or not list(plugin.JARS.glob("sparkdl-comm-bigdl-*.jar")):
        pytest.skip("`make bigdl-jar` installs BigDL and builds the adapter for it")
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    return folder


@pytest.fixture(scope="session")
def networks() -> None:
    """Skips where no network can be emulated."""
    try:
        access.close_access(access.open_access())
    except LabUnavailableError as error:
        pytest.skip(str(error))
