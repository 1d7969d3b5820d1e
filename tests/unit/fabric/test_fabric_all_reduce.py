"""All-reduces of a fabric's workers, alone and beside a server."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from sparkdl_comm.errors import InputError
from sparkdl_comm.fabric.params import FabricParams
from tests.unit.fabric_helpers import SERVER, raised, replica, run, scheduler, server, worker
from tests.unit.gang_helpers import SECONDS, wait_for

PARAMS = FabricParams("async:30")


@pytest.mark.parametrize("rails", [1, 2])
@pytest.mark.parametrize(("aggregators", "elements"), [(0, 1), (0, 1000), (1, 999)])
def test_all_reduce(aggregators, elements, rails):
    def reducing(mine):
        def work(made):
            sums = []
            for turn in range(4):
                vector = np.arange(elements, dtype=np.float32) + mine + turn
                assert made.all_reduce(vector) is vector
                sums.append(vector)
            return sums

        return work

    results, _ = run([worker(PARAMS, reducing(rank), aggregators) for rank in range(3)], rails)
    raised(results)
    for sums in results:
        for turn, total in enumerate(sums):
            np.testing.assert_array_equal(total, 3 * np.arange(elements, dtype=np.float32) + 3 + 3 * turn)


def test_all_reduce_beside_a_server():
    def work(made):
        outcome = made.push(SERVER, np.ones(made.elements, np.float32))
        vector = made.all_reduce(np.full(10, 2.0, np.float32))
        return outcome.wait().version is not None, vector

    results, _ = run([scheduler(PARAMS), server(PARAMS), worker(PARAMS, work, 1), worker(PARAMS, work)])
    raised(results)
    for _, total in results[2:]:
        np.testing.assert_array_equal(total, 4.0)
    np.testing.assert_array_equal(results[SERVER].snapshot()[0], float(sum(applied for applied, _ in results[2:])))


def test_all_reduce_when_the_replica_has_taken_over():
    lost, services = threading.Event(), []

    def schedule(fabric):
        made = fabric.register_as_scheduler(PARAMS)
        services.append(fabric.service)
        made.await_end(SECONDS)

    def leave(fabric):
        fabric.register_as_server(PARAMS, np.zeros(100, np.float32))
        assert lost.wait(SECONDS)
        fabric._daemon._link.hang_up()

    def work(made):
        sums = [made.all_reduce(np.full(10, 2.0, np.float32))]
        lost.set()
        assert wait_for(lambda: services[0].session.serving_role == "replica")
        return [*sums, made.all_reduce(np.full(10, 3.0, np.float32))]

    parts = [schedule, leave, replica(SERVER, PARAMS, 100), worker(PARAMS, work), worker(PARAMS, work)]
    results, _ = run(parts)
    raised(results)
    for first, second in results[3:]:
        np.testing.assert_array_equal(first, 4.0)
        np.testing.assert_array_equal(second, 6.0)


def test_all_reduce_that_does_not_fit():
    def reducing(elements):
        return worker(PARAMS, lambda made: made.all_reduce(np.ones(elements, np.float32)))

    results, _ = run([reducing(10), reducing(11)])
    assert all("All workers must call the same all-reduces in the same order" in str(result) for result in results)

    good = worker(PARAMS, lambda made: made.all_reduce(np.ones(10, np.float32)))
    results, _ = run([good, worker(PARAMS, lambda made: made.all_reduce(np.full(10, np.nan, np.float32)))])
    assert all("rank 1's vector in all-reduce number 1: its norm is not finite" in str(result) for result in results)

    def bad(made):
        with pytest.raises(InputError, match="all_reduce takes flat float32 vectors"):
            made.all_reduce(np.ones(10))

    raised(run([worker(PARAMS, bad)])[0])
