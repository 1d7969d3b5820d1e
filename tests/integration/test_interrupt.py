"""Ctrl-C while ranks run: SIGINT, as a terminal and a notebook send it."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark.sql import DataFrame, SparkSession

import sparkdl_comm
from sparkdl_comm import CommDistributor, TorchEstimator
from sparkdl_comm.errors import GangError
from tests import spark_home
from tests.faults import processes
from tests.integration import training_functions as functions
from tests.integration.nets import Small
from tests.slow import slow

ROOT = Path(__file__).parents[2]
RANKS = 2
#: Seconds until the slots are free again: some 4, as Spark gives a task's Python worker two to notice, looking every two; and
#: some more on a busy machine if ranks were just meeting, as Spark's executors then end on being told to kill a task.
FREE_SECONDS = 30.0
DEADLINE_SECONDS = 150.0


def running(spark: SparkSession) -> int:
    return sum(info.numRunningTasks() for info in spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos())


@contextmanager
def interrupted(once: Callable[[], bool]) -> Iterator[None]:
    """SIGINT for this process, a second after `once()` has become true, which raises KeyboardInterrupt in here."""

    def send() -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not once() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
        thread.join(DEADLINE_SECONDS)
    except KeyboardInterrupt:
        return
    pytest.fail("there was no KeyboardInterrupt")


@pytest.fixture(params=[slow("script"), "notebook"])
def handler(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Any]:
    """Of SIGINT: pyspark's, which a session made in the main thread sets, or Python's, which a notebook sets for each cell."""
    pysparks = signal.getsignal(signal.SIGINT)
    assert getattr(pysparks, "__module__", None) == type(spark.sparkContext).__module__
    handler = pysparks if request.param == "script" else signal.default_int_handler
    signal.signal(signal.SIGINT, handler)
    yield handler
    assert signal.getsignal(signal.SIGINT) is handler
    signal.signal(signal.SIGINT, pysparks)


@pytest.fixture
def data(spark: SparkSession) -> DataFrame:
    random = torch.Generator().manual_seed(1)
    rows = [(torch.randn(28, generator=random).tolist(), index % 10) for index in range(24)]
    return spark.createDataFrame(rows, "features array<float>, label int")


def estimator(strategy: str, epochs: int) -> TorchEstimator:
    sgd = functools.partial(torch.optim.SGD, lr=0.01)
    return TorchEstimator(
        model=Small, loss="CrossEntropyLoss", optimizer=sgd, maxIter=epochs, num_workers=RANKS, strategy=strategy
    )


def assert_free(spark: SparkSession, data: DataFrame, strategy: str) -> None:
    """All slots are, soon, and what is asked of the JVM next gets its own answer."""
    assert spark.range(7).count() == 7
    deadline = time.monotonic() + FREE_SECONDS
    while running(spark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert running(spark) == 0
    assert estimator(strategy, 1).fit(data).summary["iterations"] == 1


@pytest.mark.parametrize("strategy", ["ps", slow("gloo")])
def test_a_fit_ends_with_its_job(spark: SparkSession, data: DataFrame, handler: Any, strategy: str) -> None:
    with interrupted(lambda: running(spark) == RANKS):
        estimator(strategy, 1_000_000).fit(data)
    assert_free(spark, data, strategy)


@pytest.mark.slow
def test_a_function_ends_with_its_job(spark: SparkSession, data: DataFrame, handler: Any) -> None:
    with interrupted(lambda: running(spark) == RANKS):
        CommDistributor(num_workers=RANKS).run(functions.waits)
    assert_free(spark, data, "gloo")


def test_a_call_to_the_jvm_that_was_interrupted_leaves_no_answer(
    spark: SparkSession, data: DataFrame, handler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def sleep(spark: SparkSession, *_: Any) -> None:
        begun.set()
        spark.sparkContext._jvm.java.lang.Thread.sleep(20_000)

    with monkeypatch.context() as patch, interrupted(begun.is_set):
        patch.setattr("sparkdl_comm.job.session.check_dynamic_allocation", sleep)
        estimator("gloo", 1).fit(data)
    assert_free(spark, data, "gloo")


@pytest.mark.slow
def test_a_fit_in_a_thread_ends_when_the_main_thread_is_interrupted(spark: SparkSession, data: DataFrame) -> None:
    """By pyspark's handler, which cancels all jobs."""
    with ThreadPoolExecutor(1) as pool:
        with interrupted(lambda: running(spark) == RANKS):
            fit = pool.submit(estimator("gloo", 1_000_000).fit, data)
            fit.result(DEADLINE_SECONDS)
        raised = fit.exception(FREE_SECONDS)
    assert type(raised) is GangError
    assert "was cancelled" in str(raised)
    assert_free(spark, data, "gloo")


@pytest.fixture
def submitted(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts endless_fit.py by spark-submit, its output in "log", all in one process group, as a shell does."""
    environment = {**os.environ, **spark_home.environment(tmp_path), processes.VARIABLE: str(tmp_path)}
    conf = {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.ui.enabled": "false",
        **sparkdl_comm.spark_conf(progress=False),
    }
    options = [option for key, value in conf.items() for option in ("--conf", f"{key}={value}")]
    program = str(ROOT / "tests/integration/endless_fit.py")

    def start(strategy: str) -> subprocess.Popen[bytes]:
        command = [environment["SPARK_HOME"] + "/bin/spark-submit", *options, program, str(tmp_path), strategy]
        with (tmp_path / "log").open("wb") as log:
            return subprocess.Popen(
                command, env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
            )

    yield start
    for process in processes.of_application(str(tmp_path)):
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ps", "gloo"])
def test_spark_submit(submitted: Any, tmp_path: Path, strategy: str) -> None:
    """A terminal sends SIGINT to all of its foreground's process group: the JVM of spark-submit, which ends by it, the
    script, and here the executors too. Ranks are not in it: PySpark gives their daemon a group of its own."""
    submit = submitted(strategy)
    wait_for(lambda: len(list(tmp_path.glob("rank *"))) == RANKS or submit.poll() is not None, DEADLINE_SECONDS)
    assert submit.poll() is None, (tmp_path / "log").read_text()
    assert len(list(tmp_path.glob("rank *"))) == RANKS, "the ranks have not begun"
    os.killpg(submit.pid, signal.SIGINT)
    assert submit.wait(FREE_SECONDS) != 0
    wait_for(lambda: not processes.of_application(str(tmp_path)), FREE_SECONDS)
    assert processes.of_application(str(tmp_path)) == []
    assert (tmp_path / "raised").read_text() == "KeyboardInterrupt"


@pytest.mark.slow
def test_an_application_that_is_stopped(submitted: Any, tmp_path: Path) -> None:
    """What cleans up after the fit finds no SparkContext, and must not hide why the fit ended."""
    submit = submitted("gloo")
    wait_for(lambda: len(list(tmp_path.glob("rank *"))) == RANKS or submit.poll() is not None, DEADLINE_SECONDS)
    assert submit.poll() is None, (tmp_path / "log").read_text()
    (tmp_path / "stop").touch()
    assert submit.wait(FREE_SECONDS) != 0
    message = (tmp_path / "message").read_text()
    assert (tmp_path / "raised").read_text() in ("GangError", "RankLostError"), message
    assert "NoneType" not in message


def wait_for(happened: Callable[[], bool], seconds: float) -> None:
    """Until then, or so long."""
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.1)
