"""A Python worker, an executor's JVM or the driver is killed (SIGKILL) while ranks pull, push or write a checkpoint.

Each time the fit goes on from the last checkpoint, and ends with the bits of a fit that nobody disturbed. After the driver,
that is another application, with ``resume``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import processes
from tests.faults.application import LIMIT_SECONDS, Application, Outcome
from tests.slow import crossed

RESTARTS = {"spark.sparkdl.comm.maxRestarts": "2"}
#: Steps after which there is a checkpoint; 16 in all, 8 an epoch.
INTERVAL = 2
#: Where the fault strikes, and the step of the last checkpoint that is complete by then for certain.
PHASES = {"pull": (7, 4), "push": (7, 4), "checkpoint": (6, 2)}


@pytest.fixture(scope="module")
def undisturbed(application: Application) -> str:
    outcome = application.run("ps")
    assert (outcome.error, outcome.iterations) == (None, 16)
    return str(outcome.weights)


def settings(folder: Path, resume: bool = False) -> dict[str, Any]:
    return {"checkpointDir": str(folder), "checkpointInterval": INTERVAL, "resume": resume}


def goes_on(outcome: Outcome, victim: str, phase: str, weights: str) -> dict[str, Any]:
    """`outcome`: of the run that went on. Returns its figures."""
    assert outcome.error is None, outcome.text
    assert outcome.weights == weights
    assert outcome.iterations == 16
    step, complete = PHASES[phase]
    assert complete <= outcome.resumed_at <= step
    seconds = round(outcome.seconds_to_step, 2)
    return {
        "killed": victim,
        "in": phase,
        "at_step": step,
        "resumed_at": outcome.resumed_at,
        "seconds_to_step": seconds,
    }


@pytest.mark.parametrize(("victim", "phase"), crossed(["worker", "executor"], PHASES, quick=[("worker", "push")]))
def test_a_rank_is_killed(
    application: Application, undisturbed: str, tmp_path: Path, resumed: list[Any], victim: str, phase: str
) -> None:
    step, _ = PHASES[phase]
    outcome = application.run(
        "ps", conf=RESTARTS, settings=settings(tmp_path), action=f"kill {victim}", rank=1, phase=phase, step=step
    )
    outcome.assert_fired(phase, step)
    assert not processes.is_alive(outcome.mark["victim"])
    resumed.append(goes_on(outcome, victim, phase, undisturbed))
    assert outcome.restarts == 1
    outcome.assert_nothing_left()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Application] = []

    def one(**how: Any) -> Application:
        folder = tmp_path / f"application-{len(started)}"
        folder.mkdir()
        started.append(Application(folder, **how))
        return started[-1]

    yield one
    for application in started:
        application.kill()


@pytest.mark.slow
def test_files_are_split_in_another_way_when_an_executor_is_gone(start: Any, tmp_path: Path) -> None:
    """There are more slots than ranks, so the fit goes on without waiting for a new executor."""
    application = start(cluster={"spark.master": "local-cluster[4,1,1024]"})
    weights = application.run("ps", files=True).weights
    fault = {"action": "kill executor", "rank": 1, "phase": "push", "step": 7}
    outcome = application.run("ps", conf=RESTARTS, settings=settings(tmp_path / "there"), files=True, **fault)
    outcome.assert_fired("push", 7)
    assert outcome.error is None, outcome.text
    assert (outcome.restarts, outcome.weights) == (1, weights)
    assert outcome.resumed_at >= 4


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["gloo", "ps"])
def test_without_checkpoints_it_begins_again(application: Application, strategy: str) -> None:
    weights = application.run(strategy).weights
    outcome = application.run(strategy, conf=RESTARTS, action="kill worker", rank=0, phase="push", step=7)
    outcome.assert_fired("push", 7)
    assert (outcome.error, outcome.weights, outcome.restarts, outcome.resumed_at) == (None, weights, 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("phase", list(PHASES))
def test_the_driver_is_killed(start: Any, undisturbed: str, tmp_path: Path, resumed: list[Any], phase: str) -> None:
    step, _ = PHASES[phase]
    folder = tmp_path / "checkpoints"
    fault = {"action": "kill driver", "rank": 1, "phase": phase, "step": step}
    first = start()
    outcome = first.run("ps", settings=settings(folder), **fault)
    outcome.assert_fired(phase, step)
    assert not processes.is_alive(outcome.mark["victim"])
    deadline = time.monotonic() + LIMIT_SECONDS
    while processes.of_application(first.name) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes.of_application(first.name) == [], "ranks whose driver is gone stop"
    first.kill()
    again = start().run("ps", settings=settings(folder, resume=True), marker=outcome.marker, **fault)
    resumed.append(goes_on(again, "driver", phase, undisturbed))
    assert again.restarts == 0
