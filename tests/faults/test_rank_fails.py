"""A rank fails by itself: all stop within seconds, and the driver's exception says which rank, where and why."""

from __future__ import annotations

import pytest

from tests.faults.application import Application, Outcome
from tests.faults.fault import BOOM

BOTH = pytest.mark.parametrize("strategy", ["ps", "gloo"])
SHORT = {"spark.sparkdl.comm.timeout": "3s"}


def carries_its_traceback(outcome: Outcome, error: str, message: str, line: str) -> None:
    outcome.assert_typed("RankFailedError")
    assert outcome.rank == 1
    assert outcome.user_error == error
    assert outcome.user_message == message
    assert "Traceback of rank 1:" in outcome.text
    assert line in outcome.remote_traceback
    assert line in outcome.text
    assert f"{error}: {message}" in outcome.text


def test_exception_in_forward(application: Application) -> None:
    outcome = application.run("ps", action="raise", rank=1, phase="forward")
    outcome.assert_fired("forward", step=3)
    carries_its_traceback(outcome, "LookupError", BOOM, "raise LookupError(BOOM)  # this very line")
    assert (outcome.step, outcome.phase) == (4, "forward")
    outcome.assert_nothing_left()


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("phase", ["set-up", "forward", "backward", "update"])
def test_exception(application: Application, strategy: str, phase: str) -> None:
    outcome = application.run(strategy, action="raise", rank=1, phase=phase)
    outcome.assert_fired(phase)
    carries_its_traceback(outcome, "LookupError", BOOM, "raise LookupError(BOOM)  # this very line")
    assert outcome.phase == phase
    outcome.assert_nothing_left()


@pytest.mark.slow
@BOTH
def test_exception_that_looks_like_a_lost_peer(application: Application, strategy: str) -> None:
    outcome = application.run(strategy, action="raise connection", rank=1, phase="forward")
    outcome.assert_fired("forward", step=3)
    outcome.assert_typed()
    outcome.assert_nothing_left()
    message = "connection reset by the camera"
    carries_its_traceback(outcome, "ConnectionResetError", message, "raise ConnectionResetError")


@pytest.mark.slow
@BOTH
def test_system_exit(application: Application, strategy: str) -> None:
    """The user's code calls sys.exit, which is no Exception."""
    outcome = application.run(strategy, action="sys.exit", rank=1, phase="forward")
    outcome.assert_fired("forward", step=3)
    carries_its_traceback(outcome, "SystemExit", "the user's code gives up", "sys.exit(")
    outcome.assert_nothing_left()


@pytest.mark.slow
@BOTH
def test_loss_becomes_nan(application: Application, strategy: str) -> None:
    outcome = application.run(strategy, action="nan", rank=2, phase="forward")
    outcome.assert_fired("forward", step=3)
    outcome.assert_typed("NonFiniteLossError")
    assert (outcome.rank, outcome.step) == (2, 4)
    assert "rank 2 at step 4" in outcome.message
    outcome.assert_nothing_left()


@pytest.mark.slow
@BOTH
def test_ragged_features(application: Application, strategy: str) -> None:
    outcome = application.run(strategy, ragged=True)
    outcome.assert_typed("InputError")
    assert "63" in outcome.message
    assert "64" in outcome.message
    outcome.assert_nothing_left()


def ends_at_its_deadline(outcome: Outcome) -> None:
    outcome.assert_typed()
    outcome.assert_nothing_left()
    outcome.assert_typed("DeadlineError")
    assert "spark.sparkdl.comm.timeout" in outcome.text


@pytest.mark.slow
@BOTH
def test_rank_stalls_before_it_joins(application: Application, strategy: str) -> None:
    application.run(strategy)  # three seconds are enough for a start only if the workers are warm
    outcome = application.run(strategy, conf=SHORT, action="stall", rank=1, phase="set-up")
    outcome.assert_fired("set-up")
    ends_at_its_deadline(outcome)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("phase", ["forward", "backward", "update"])
def test_rank_stalls(application: Application, strategy: str, phase: str) -> None:
    application.run(strategy)
    outcome = application.run(strategy, conf=SHORT, action="stall", rank=1, phase=phase)
    outcome.assert_fired(phase, step=3)
    ends_at_its_deadline(outcome)
    if strategy == "ps":  # gloo does not say which rank it waited for
        assert "rank 1" in outcome.message


@pytest.mark.slow
@BOTH
def test_rank_is_stopped(application: Application, strategy: str) -> None:
    """SIGSTOP: as alive as can be for the kernel and its peers, and it does not answer."""
    application.run(strategy)
    outcome = application.run(strategy, conf=SHORT, action="stop", rank=1, phase="forward")
    outcome.assert_fired("forward", step=3)
    ends_at_its_deadline(outcome)
    if strategy == "ps":  # gloo does not say which rank it waited for
        assert "rank 1" in outcome.message
