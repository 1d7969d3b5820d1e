"""A process of strategy ``fabric`` is killed (SIGKILL): the fit goes on without it, or from the last checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults import processes
from tests.faults.application import Application, Outcome
from tests.slow import slow

CONF = {"spark.sparkdl.comm.fabric.batchInterval": "20ms", "spark.sparkdl.comm.maxRestarts": "1"}
REPLICA = {"spark.sparkdl.comm.fabric.replica": "true"}


def killed(
    application: Application, victim: str, rank: int, step: int, conf: dict[str, str], **settings: Any
) -> Outcome:
    outcome = application.run(
        "fabric",
        conf={**CONF, **conf},
        settings={"maxIter": 6, **settings},
        action=f"kill {victim}",
        rank=rank,
        phase="forward",
        step=step,
    )
    outcome.assert_fired("forward", step)
    assert not processes.is_alive(outcome.mark["victim"])
    assert outcome.error is None, outcome.text
    assert outcome.leftovers == [], "\n".join(outcome.leftovers)
    return outcome


@pytest.mark.parametrize(
    ("victim", "rank", "conf"),
    [
        pytest.param("server", 0, REPLICA, id="server"),
        slow("server", 1, REPLICA, id="replica"),
        slow("aggregator", 1, {}, id="aggregator"),
    ],
)
def test_training_goes_on(application: Application, victim: str, rank: int, conf: dict[str, str]) -> None:
    assert killed(application, victim, rank, 10, conf).restarts == 0


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["server", "worker"])
def test_goes_on_from_the_last_checkpoint(application: Application, tmp_path: Path, victim: str) -> None:
    """A server without replica; a rank, with which the barrier stage ends. An epoch has 24 updates: the first one is over."""
    there = {"checkpointDir": str(tmp_path), "checkpointInterval": 1}
    outcome = killed(application, victim, 0, 30, {}, **there)
    assert outcome.restarts == 1
    assert outcome.resumed_at > 0
