"""A Python worker or an executor's JVM is killed (SIGKILL), in every phase of a run.

The fit ends with a typed error within 15 s, nothing hangs, no process and no shared memory is left behind, and the next fit
on the same application succeeds.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults import processes
from tests.faults.application import Application

VICTIMS = {
    "worker 1": {"action": "kill worker", "rank": 1},
    "worker 0": {"action": "kill worker", "rank": 0},
    "executor 1": {"action": "kill executor", "rank": 1},
}
PHASES = {
    "ps": ("set-up", "join", "attach", "pull", "forward", "backward", "push", "update", "finish"),
    # without a server there is nothing to attach to or to pull; what comes before is the same for all strategies
    "gloo": ("forward", "backward", "push", "update", "finish"),
    "bml": ("forward", "backward"),
}
STEPS = ("pull", "forward", "backward", "push", "update")
FAST = {("ps", "worker 1", "push")}


def _cases() -> list[Any]:
    cases = []
    for strategy, phases in PHASES.items():
        for phase in phases:
            for victim in VICTIMS:
                marks = () if (strategy, victim, phase) in FAST else (pytest.mark.slow,)
                name = f"{strategy}-{phase}-{victim.replace(' ', '')}"
                cases.append(pytest.param(strategy, phase, victim, marks=marks, id=name))
    return cases


@pytest.mark.parametrize(("strategy", "phase", "victim"), _cases())
def test_killed(application: Application, strategy: str, phase: str, victim: str) -> None:
    outcome = application.run(strategy, phase=phase, **VICTIMS[victim])
    outcome.assert_fired(phase, step=3 if phase in STEPS else None)
    assert not processes.is_alive(outcome.mark["victim"])
    assert not processes.is_alive(outcome.mark["pid"])
    outcome.assert_typed("RankLostError")
    assert outcome.rank == VICTIMS[victim]["rank"]
    outcome.assert_nothing_left()


@pytest.mark.slow
def test_killed_while_the_trained_tensors_are_sent(application: Application) -> None:
    outcome = application.run("ps", action="kill worker", rank=0, phase="send")
    outcome.assert_fired("send")
    assert not processes.is_alive(outcome.mark["victim"])
    outcome.assert_typed("RankLostError")
    assert outcome.rank == 0
    outcome.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ps", "gloo"])
def test_user_code_ends_the_process(application: Application, strategy: str) -> None:
    outcome = application.run(strategy, action="exit", rank=1, phase="forward")
    outcome.assert_fired("forward", step=3)
    assert not processes.is_alive(outcome.mark["pid"])
    outcome.assert_typed("RankLostError")
    assert outcome.rank == 1
    outcome.assert_nothing_left()
