"""Refusals of the fabric: inconsistent roles, invalid requests, invalid params."""

from __future__ import annotations

import numpy as np
import pytest

from sparkdl_comm.errors import ConfError, GangError, InputError
from sparkdl_comm.fabric.params import FabricParams
from tests.unit.fabric_helpers import ELEMENTS, SERVER, pushing, raised, replica, run, scheduler, server, worker

PARAMS = FabricParams("async:30")


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ([scheduler(PARAMS), server(PARAMS)], GangError, "at least one worker and one server, not 0 and 1"),
        (
            [scheduler(PARAMS), server(PARAMS), worker(FabricParams("async:2"), pushing(1))],
            GangError,
            "all ranks must give the same",
        ),
        (
            [scheduler(PARAMS), server(PARAMS), replica(1, PARAMS, 7), worker(PARAMS, pushing(1))],
            GangError,
            "begins with a different model than its server",
        ),
        (
            [scheduler(PARAMS), server(PARAMS), server(PARAMS), worker(PARAMS, pushing(1))],
            GangError,
            "each server must register a different shard",
        ),
    ],
)
def test_roles_that_do_not_fit_together(parts, error, words):
    results, _ = run(parts)
    for result in results:
        assert isinstance(result, error)
        assert words in str(result)


def test_no_server():
    def work(made):
        with pytest.raises(InputError, match="rank 1 is not a server; the servers are none"):
            made.get(SERVER, np.ones(3, np.float32))

    raised(run([scheduler(PARAMS), worker(PARAMS, work)])[0])


def test_no_aggregator_is_free():
    parts = [scheduler(PARAMS), server(PARAMS), replica(SERVER, PARAMS), worker(PARAMS, pushing(1))]
    results, _ = run(parts, fabric_replica_aggregators=1)
    assert all("1 aggregators requested for replicas, but there are only 0" in str(each) for each in results)


def test_what_a_rank_cannot_ask_for():
    def work(made):
        with pytest.raises(
            InputError, match=r"an update must be float32 \[1000\] like the servers' model, not float64 \[1000\]"
        ):
            made.push(SERVER, np.ones(ELEMENTS))
        with pytest.raises(
            InputError, match=r"model must be float32 \[1000\] like the servers' model, not float32 \[3\]"
        ):
            made.get(SERVER, np.ones(3, np.float32))
        with pytest.raises(InputError, match="rank 2 is not a server"):
            made.push(2, np.ones(ELEMENTS, np.float32))

    def late(fabric):
        work(fabric.register_as_worker(PARAMS))
        with pytest.raises(GangError, match="rank 2 has registered already, as worker"):
            fabric.register_as_worker(PARAMS)
        with pytest.raises(InputError, match="rank 2 cannot be the scheduler"):
            fabric.register_as_scheduler(PARAMS)
        with pytest.raises(InputError, match="server=2: must be another rank"):
            fabric.register_as_replica(2, PARAMS, np.ones(3, np.float32))
        with pytest.raises(ConfError, match="bsp has no use for a replica"):
            fabric.register_as_replica(1, FabricParams("bsp"), np.ones(3, np.float32))
        fabric.close()

    results, _ = run([scheduler(PARAMS), server(PARAMS), late])
    raised(results)


def test_a_daemon_that_registers_again():
    """A second registration ends the job. It must not start a new session, which would forget the updates."""

    def twice(fabric):
        made = fabric.register_as_worker(PARAMS, 0)
        fabric._daemon.report(fabric._daemon.register)
        made.get(SERVER, np.empty(ELEMENTS, np.float32))

    results, _ = run([scheduler(PARAMS), server(PARAMS), twice])
    assert all("rank 2 sent the fabric's scheduler an unexpected Register" in str(each) for each in results)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"sync": "async:0"}, ConfError, "TAU at least 1"),
        ({"sync": "sometimes"}, ConfError, "must be bsp, ssp:K"),
        ({"divergence_bound": 0.0}, InputError, "divergence_bound=0.0: must be more than 0"),
        ({"momentum": 1.0}, InputError, "momentum=1.0: must be from 0 to below 1"),
        ({"step_scale": -1.0}, InputError, "step_scale=-1.0: must be a number above 0"),
        ({"version": -1}, InputError, "version=-1: must be at least 0"),
    ],
)
def test_params_that_are_none(changes, error, words):
    with pytest.raises(error, match=words.replace("(", r"\(")):
        FabricParams(**changes)


def test_params_limit_the_drift_of_workers():
    bounded, stale, lockstep = map(FabricParams, ("async:3", "ssp:2", "bsp"))
    assert [params.delay_bound for params in (bounded, stale, lockstep)] == [3, None, None]
    assert [params.deadline(4, 5) for params in (bounded, stale, lockstep)] == [2, None, None]
    assert bounded.can_begin(9, 0)
    assert [(stale.can_begin(5, settled), lockstep.can_begin(5, settled)) for settled in (2, 3, 5)] == [
        (False, False), (True, False), (True, True),
    ]  # fmt: skip
    assert FabricParams(step_scale=3.0).scale(7, 5) == 1.0
    assert FabricParams().scale(7, 5) == 1.0
