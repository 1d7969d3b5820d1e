from __future__ import annotations

import logging

import numpy as np
import pytest

from sparkdl_comm.errors import ConfError, GangError, InputError
from sparkdl_comm.fabric.params import FabricParams
from tests.unit.fabric_helpers import ELEMENTS, raised, replica, run, scheduler, server, worker

PARAMS = FabricParams("async:30")
SERVER = 1


def pushing(count: int, value: float = 1.0):
    """Gets the model and pushes so many updates, all ``value``; the outcomes."""

    def work(made):
        model, outcomes = np.empty(made.elements, np.float32), []
        for _ in range(count):
            made.get(SERVER, model)
            outcomes.append(made.push(SERVER, np.full(made.elements, value, np.float32)).wait())
        return outcomes

    return work


@pytest.mark.parametrize("rails", [1, 2])
@pytest.mark.parametrize("aggregators", [0, 1])
def test_sums_and_versions(aggregators, rails):
    count = 5
    parts = [scheduler(PARAMS), server(PARAMS)] + [worker(PARAMS, pushing(count, 2.0**k), aggregators) for k in range(3)]
    results, _ = run(parts, rails)
    raised(results)
    outcomes = [outcome for mine in results[2:] for outcome in mine]
    values, version = results[1].snapshot()
    applied = [sum(outcome.version is not None for outcome in mine) for mine in results[2:]]
    assert version == sum(applied)
    np.testing.assert_array_equal(values, sum(n * 2.0**k for k, n in enumerate(applied)))
    assert {outcome.why for outcome in outcomes if outcome.version is None} <= {"deadline"}
    assert max(outcome.version for outcome in outcomes if outcome.version is not None) == version
    assert 1 <= results[1].largest_delay <= 30
