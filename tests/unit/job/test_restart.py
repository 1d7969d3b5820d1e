"""Which failures have the ranks started again, and how the next gang differs from the one before."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import (
    DeadlineError,
    InputError,
    NonFiniteLossError,
    PersistenceError,
    RankFailedError,
    RankLostError,
    ResultError,
    SlotsError,
    SparkdlCommError,
)
from sparkdl_comm.job import restart
from sparkdl_comm.job.launch import _diagnose
from sparkdl_comm.optim.optimizer import Optimization
from sparkdl_comm.train.spec import Checkpoints, TrainSpec

LOST = RankLostError("rank 1 was lost", rank=1)
ROWS: Any = SimpleNamespace(sparkSession=None)  # the functions that would ask the session are replaced


def spec(restarts: int = 2, checkpoints: Checkpoints | None = None) -> TrainSpec:
    return TrainSpec(
        torch.nn.Identity, torch.nn.MSELoss(), Optimization(torch.optim.SGD), 1, 1, 0, "cpu", "gloo",
        CommConf.from_mapping({}, max_restarts=restarts), 2, False, "0" * 16, b"secret", ("", 0), checkpoints=checkpoints,
    )  # fmt: skip


class Runs:
    """Fails with each of `errors`, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.specs: list[TrainSpec] = []

    def __call__(self, spec: TrainSpec) -> str:
        self.specs.append(spec)
        if self.errors:
            raise self.errors.pop(0)
        return "trained"


def start(runs: Runs, spec: TrainSpec) -> tuple[Any, int]:
    """Train and train again, with `runs` instead of gangs."""
    with mock.patch.object(restart, "run_with_cache", lambda rows, spec, on_progress: runs(spec)):
        return restart.run_with_restarts(ROWS, spec, lambda progress: None)


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """What `executors` answers, one set per call; the last of them for ever."""
    answers = [{"a", "b"}]
    monkeypatch.setattr(restart, "executors", lambda spark: answers.pop(0) if len(answers) > 1 else answers[0])
    monkeypatch.setattr(restart, "check_slots", lambda spark, world, timeout: world)
    monkeypatch.setattr(restart, "is_stopped", lambda spark: False)
    return answers


def test_the_next_gang(caplog: pytest.LogCaptureFixture) -> None:
    runs = Runs(LOST, LOST)
    checkpoints = Checkpoints("/there", 5, None, 2, resume=False, run="r")
    with caplog.at_level(logging.WARNING):
        assert start(runs, spec(checkpoints=checkpoints)) == ("trained", 2)
    assert len({run.attempt_id for run in runs.specs}) == len({run.secret for run in runs.specs}) == 3
    assert [run.checkpoints.resume for run in runs.specs] == [False, True, True]  # type: ignore[union-attr]
    assert "rank 1 was lost\nStarting again from the last checkpoint in /there (2 of 2, " in caplog.text


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_at_most(limit: int) -> None:
    runs = Runs(*[LOST] * 5)
    with pytest.raises(RankLostError):
        start(runs, spec(limit))
    assert len(runs.specs) == 1 + limit


@pytest.mark.parametrize(
    "error",
    [
        InputError("rows"),
        PersistenceError("disk"),
        NonFiniteLossError("nan", rank=1, step=3),
        RankFailedError(rank=1, step=3, phase="forward", error="LookupError", error_message="boom"),
        DeadlineError("late"),
    ],
)
def test_not_for(error: SparkdlCommError) -> None:
    runs = Runs(error)
    with pytest.raises(type(error)):
        start(runs, spec())
    assert len(runs.specs) == 1


def test_a_deadline_missed_by_an_executor_that_is_gone(cluster: list[set[str]]) -> None:
    cluster[:] = [{"a", "b"}, {"a", "c"}]
    assert start(Runs(DeadlineError("late")), spec()) == ("trained", 1)


def test_executors_that_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spark: Any, world: int, timeout: float) -> int:
        raise SlotsError("1 slot")

    monkeypatch.setattr(restart, "check_slots", refuse)
    with pytest.raises(SlotsError) as error:
        start(Runs(LOST), spec())
    assert error.value.__cause__ is LOST


@pytest.mark.parametrize("limit", [1, 5])
def test_executors_killed_for_their_memory(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr("sparkdl_comm.job.restart.advise", lambda spark: "Give them more")
    killed = RankLostError("Exit status: 137", rank=1)
    runs = Runs(killed, killed)
    with pytest.raises(RankLostError, match="killed for their memory twice, .* Give them more") as error:
        start(runs, spec(limit))
    assert error.value.__cause__ is killed
    assert len(runs.specs) == 2


def test_an_executor_killed_for_its_memory_once() -> None:
    runs = Runs(RankLostError("Exit status: 137", rank=1), LOST)
    assert start(runs, spec(2)) == ("trained", 2)


def lost_at_exit(message: str = "rank 1 was lost") -> RankLostError:
    """A rank is lost when the driver has received the trained tensors."""
    lost = RankLostError(message, rank=1)
    lost.state_dict = {"weight": torch.ones(2)}
    return lost


@pytest.mark.parametrize(
    ("then", "raised"),
    [
        (NonFiniteLossError("nan", rank=1, step=3), NonFiniteLossError),
        (LOST, RankLostError),
        (RuntimeError("the JVM is gone"), ResultError),
    ],
)
def test_tensors_received_before_a_restart_are_not_lost(then: Exception, raised: type[SparkdlCommError]) -> None:
    runs = Runs(lost_at_exit(), then)
    with pytest.raises(raised) as error:
        start(runs, spec(1))
    assert len(runs.specs) == 2
    assert error.value.state_dict is not None
    assert error.value.state_dict["weight"].tolist() == [1.0, 1.0]
    assert start(Runs(lost_at_exit()), spec(1)) == ("trained", 1)


@pytest.mark.parametrize("message", ["rank 1 was lost", "Exit status: 137"])
def test_tensors_received_before_the_last_loss(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    monkeypatch.setattr(restart, "advise", lambda spark: "Give them more")
    with pytest.raises(RankLostError) as error:
        start(Runs(lost_at_exit(message)), spec(0))
    assert error.value.state_dict is not None


def test_tensors_received_before_executors_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "check_slots", mock.Mock(side_effect=SlotsError("1 slot")))
    with pytest.raises(SlotsError) as error:
        start(Runs(lost_at_exit()), spec())
    assert error.value.state_dict is not None


def test_an_application_that_was_stopped_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "is_stopped", lambda spark: True)
    monkeypatch.setattr(
        restart, "check_slots", mock.Mock(side_effect=AttributeError("'NoneType' has no attribute 'sc'"))
    )
    runs = Runs(LOST)
    with pytest.raises(RankLostError) as error:
        start(runs, spec())
    assert error.value is LOST
    assert len(runs.specs) == 1


def test_too_few_slots_in_the_words_of_spark() -> None:
    text = "Job aborted:\n[SPARK-24819]: Barrier execution mode does not allow run a barrier stage that …\n\tat x"
    error = _diagnose(text)
    assert isinstance(error, SlotsError)
    assert error.message.endswith("that …")
