"""What is said of memory: limits of Spark's that PyTorch does not fit into, and executors that were killed for theirs."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_comm.errors import DeadlineError, RankLostError
from sparkdl_comm.job import task
from sparkdl_comm.job.launch import _diagnose, was_killed
from sparkdl_comm.job.restart import MemoryKillCounter, killed_executors, warn_about_limit
from sparkdl_comm.job.task import explain_limit

YARN = (
    "Container killed by YARN for exceeding physical memory limits. 1.6 GB of 1.4 GB physical memory used. Consider boosting"
    " spark.executor.memoryOverhead."
)
KILLED = [
    YARN,
    "Container from a bad node: container_1_02 on host: h. Exit status: 137. Diagnostics: Killed by external signal",
    "Container marked as failed: container_1_02 on host: h. Exit status: -104.",
    "[2026-01-01] Container killed on request. Exit code is 137",
    "The executor with id 3 exited with exit code 137(SIGKILL, possible container OOM).",
    "The executor with id 3 was OOMKilled",
]
OTHERWISE = [
    "Command exited with code 137",  # a standalone worker's word: anybody may have killed that process
    "Remote RPC client disassociated. Likely due to containers exceeding thresholds, or network issues.",
    "Container from a bad node: container_1_02 on host: h. Exit status: 1. Diagnostics: 1370 lines",
    "Container container_1_02 on host: h was preempted.",
]


@pytest.mark.parametrize("text", KILLED)
def test_killed_for_its_memory(text: str) -> None:
    assert was_killed(text)


@pytest.mark.parametrize("text", OTHERWISE)
def test_lost_otherwise(text: str) -> None:
    assert not was_killed(text)


class Spark:
    """A session of which executors are ``gone``, for a reason or none."""

    _jsparkSession = None

    def __init__(self, **conf: str) -> None:
        self.gone: list[str | None] = []
        settings = [("spark." + key.replace("_", "."), value) for key, value in conf.items()]
        listed = SimpleNamespace(size=lambda: len(self.gone), apply=self._summary)
        scala = SimpleNamespace(statusStore=lambda: SimpleNamespace(executorList=lambda active: listed))
        self.sparkContext: Any = SimpleNamespace(
            getConf=lambda: SimpleNamespace(getAll=lambda: settings), _jsc=SimpleNamespace(sc=lambda: scala)
        )

    def _summary(self, index: int) -> Any:
        reason = self.gone[index]
        option = SimpleNamespace(isDefined=lambda: reason is not None, get=lambda: reason)
        return SimpleNamespace(id=lambda: str(index), removeReason=lambda: option)


def test_executors_that_spark_says_were_killed() -> None:
    spark: Any = Spark()
    spark.gone = [None, OTHERWISE[0], YARN]
    assert killed_executors(spark) == {"2": YARN}


def test_the_second_kill_of_a_fit_is_the_last() -> None:
    spark: Any = Spark(executor_memoryOverhead="512m", python_daemon_module="sparkdl_comm.daemon")
    spark.gone = [YARN]  # in an earlier fit
    kills, lost = MemoryKillCounter(spark), RankLostError("rank 0 lost a connection", rank=0)
    kills.begin_attempt()
    kills.check(lost, is_last=False)
    spark.gone += [YARN, YARN]  # two at once: one attempt
    kills.check(lost, is_last=False)
    spark.gone += [YARN]
    kills.check(lost, is_last=False)
    kills.begin_attempt()
    spark.gone += [OTHERWISE[0]]
    kills.check(lost, is_last=False)
    kills.begin_attempt()
    spark.gone += [KILLED[1]]
    told = r"killed for their memory twice.* increase spark\.executor\.memoryOverhead \(now 512m\), and unset spark\.python"
    with pytest.raises(RankLostError, match=told) as error:
        kills.check(lost, is_last=False)
    assert error.value.__cause__ is lost
    assert error.value.rank == 0
    assert KILLED[1] in error.value.message


def test_a_kill_that_the_ranks_tell_of_when_no_other_start_is_allowed() -> None:
    kills = MemoryKillCounter(Spark())  # type: ignore[arg-type]
    kills.begin_attempt()
    for other in (DeadlineError("late"), RankLostError(OTHERWISE[1])):
        kills.check(other, is_last=True)
    with pytest.raises(RankLostError, match=r"and maxRestarts allows .*\(now not set: a tenth of"):
        kills.check(RankLostError(f"rank 1 was lost. Spark says: {YARN}", rank=1), is_last=True)


def test_a_rank_whose_container_was_killed_in_the_words_of_spark() -> None:
    text = (
        "Could not recover from a failed barrier ResultStage. Most recent failure reason: Stage failed because barrier task"
        f" ResultTask(3, 1) finished unsuccessfully.\nExecutorLostFailure (executor 2 exited) Reason: {YARN}\n\tat x"
    )
    error = _diagnose(text)
    assert isinstance(error, RankLostError)
    assert error.rank == 1
    assert "rank 1 was lost: its executor was killed for using too much memory" in error.message
    assert "increase spark.executor.memoryOverhead" in error.message


def test_a_limit_of_address_space_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_about_limit(Spark())  # type: ignore[arg-type]
        assert caplog.messages == []
        warn_about_limit(Spark(executor_pyspark_memory="2g"))  # type: ignore[arg-type]
    (told,) = caplog.messages
    assert told.startswith("spark.executor.pyspark.memory=2g limits the address space")
    assert "spark.executor.memoryOverhead" in told


@pytest.mark.parametrize(
    ("error", "message", "is_refused"),
    [
        ("MemoryError", "", True),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.", True),
        ("RuntimeError", "DefaultCPUAllocator: not enough memory: you tried to allocate 4096 bytes.", True),
        ("numpy._core._exceptions._ArrayMemoryError", "Unable to allocate 16. GiB for an array", True),
        ("OSError", "[Errno 12] Cannot allocate memory", True),
        ("RuntimeError", "can't start new thread", True),
        ("ValueError", "no memory of it", False),
    ],
)
def test_an_allocation_that_such_a_limit_refuses(
    monkeypatch: pytest.MonkeyPatch, error: str, message: str, is_refused: bool
) -> None:
    assert explain_limit(error, message) == message  # this process has none
    monkeypatch.setattr(task.resource, "getrlimit", lambda which: (2 << 30, 2 << 30))
    assert ("2048 MiB of address space: spark.executor.pyspark.memory" in explain_limit(error, message)) == is_refused
