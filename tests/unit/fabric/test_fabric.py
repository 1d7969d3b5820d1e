"""Ranks over the fabric, with real sockets and schedulers. Each aggregator has its own process."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import pytest

from sparkdl_comm.errors import GangError
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.service import SchedulerService
from tests.slow import crossed, slow
from tests.unit.fabric_helpers import (
    ELEMENTS,
    INTERVAL,
    SERVER,
    pushing,
    raised,
    replica,
    run,
    scheduler,
    server,
    worker,
)
from tests.unit.gang_helpers import SECONDS

PARAMS = FabricParams("async:30")


def applied(outcomes):
    return sum(outcome.version is not None for outcome in outcomes)


@pytest.mark.parametrize(("aggregators", "rails"), crossed([0, 1], [1, 2], quick=[(0, 1), (1, 2)]))
def test_sums_and_versions(aggregators, rails):
    workers = [worker(PARAMS, pushing(5, 2.0**k), aggregators) for k in range(3)]
    results, _ = run([scheduler(PARAMS), server(PARAMS), *workers], rails)
    raised(results)
    values, version = results[SERVER].snapshot()
    counts = [applied(outcomes) for outcomes in results[2:]]
    assert version == sum(counts)
    np.testing.assert_array_equal(values, sum(count * 2.0**k for k, count in enumerate(counts)))
    outcomes = [outcome for mine in results[2:] for outcome in mine]
    assert {outcome.why for outcome in outcomes if outcome.version is None} <= {"deadline"}
    assert max(outcome.version for outcome in outcomes if outcome.version is not None) == version
    assert 1 <= results[SERVER].largest_delay <= 30


def test_rank_0_may_be_a_worker_too():
    results, _ = run([worker(PARAMS, pushing(3)), server(PARAMS)])
    raised(results)
    assert applied(results[0]) == 3
    np.testing.assert_array_equal(results[SERVER].snapshot()[0], np.full(ELEMENTS, 3.0))


def test_nobody_waits_for_the_next_batch_where_links_are_idle():
    results, _ = run(
        [scheduler(PARAMS), server(PARAMS), worker(PARAMS, pushing(3), 1)], fabric_batch_interval=10 * SECONDS
    )
    raised(results)
    assert [outcome.version for outcome in results[2]] == [1, 2, 3]


def test_decisions_that_take_longer_than_the_interval(monkeypatch):
    """The scheduler hears something between two of them."""

    def decide_slowly(service, decide=SchedulerService._decide):
        decide(service)
        time.sleep(3 * INTERVAL)

    monkeypatch.setattr(SchedulerService, "_decide", decide_slowly)
    results, _ = run([scheduler(PARAMS), server(PARAMS), worker(PARAMS, pushing(2))], timeout=5.0)
    raised(results)
    assert [outcome.version for outcome in results[2]] == [1, 2]


def test_momentum():
    """A single worker, so that each update is a step of the paper's equation 2."""
    params = FabricParams("async:5", momentum=0.5)
    results, _ = run([scheduler(params), server(params), worker(params, pushing(4))])
    raised(results)
    before, now = 0.0, 0.0
    for _ in range(4):
        before, now = now, now + 1.0 + 0.5 * (now - before)
    np.testing.assert_allclose(results[SERVER].snapshot()[0], now)


def test_step_size():
    """Updates are multiplied by C / sqrt(version + delay) on their way."""
    params = FabricParams("async:5", step_scale=2.0)
    results, _ = run([scheduler(params), server(params), worker(params, pushing(3))])
    raised(results)
    np.testing.assert_allclose(results[SERVER].snapshot()[0], sum(2.0 / np.sqrt(t + 1) for t in (1, 2, 3)), rtol=1e-6)


@pytest.mark.parametrize("bound", [1, slow(3)])
def test_no_delay_above_the_bound(bound):
    """A worker that does not ask for the model again pushes what is too old: it is dropped, and not sent."""
    params = FabricParams(f"async:{bound}")

    def stale(made):
        made.get(SERVER, np.empty(made.elements, np.float32))
        return [made.push(SERVER, np.ones(made.elements, np.float32)).wait() for _ in range(bound + 3)]

    results, fabrics = run([scheduler(params), server(params), worker(params, stale), worker(params, pushing(6), 1)])
    raised(results)
    outcomes = [*results[2], *results[3]]
    assert sum(outcome.why == "deadline" for outcome in results[2]) >= 3
    assert results[SERVER].largest_delay <= bound
    assert results[SERVER].version == applied(outcomes)
    session = fabrics[0].service.session
    assert len(session.delays) == applied(outcomes)
    assert max(session.delays) == results[SERVER].largest_delay
    assert session.dropped == {"deadline": len(outcomes) - applied(outcomes)}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_refused(bad, caplog):
    def work(made):
        update = np.ones(made.elements, np.float32)
        made.get(SERVER, update.copy())
        update[7] = bad
        with caplog.at_level(logging.WARNING):
            # Whatever norm the worker claims.
            first = made.push(SERVER, update, 1.0).wait()
        return [first, made.push(SERVER, np.ones(made.elements, np.float32)).wait()]

    results, _ = run([scheduler(PARAMS), server(PARAMS), worker(PARAMS, work)])
    raised(results)
    assert [(outcome.version, outcome.why) for outcome in results[2]] == [(None, "norm"), (1, "")]
    np.testing.assert_array_equal(results[SERVER].snapshot()[0], np.ones(ELEMENTS))
    assert "refused an update of rank 2: its norm is not a finite number" in caplog.text


@pytest.mark.parametrize("aggregators", [0, slow(1)])
def test_bsp_keeps_all_in_step(aggregators):
    params = FabricParams("bsp")

    def work(made):
        model, versions = np.empty(made.elements, np.float32), []
        for _ in range(4):
            versions.append(made.get(SERVER, model))
            np.testing.assert_array_equal(model, float(versions[-1]))
            made.push(SERVER, np.ones(made.elements, np.float32))
        return versions

    results, _ = run([scheduler(params), server(params), *[worker(params, work, aggregators)] * 3])
    raised(results)
    assert results[2:] == [[0, 3, 6, 9]] * 3


def test_bsp_gives_everybody_the_same_model():
    """Also one that asks when another one's next update is applied."""
    params = FabricParams("bsp")
    gone_on = threading.Event()

    def work(asks_late):
        def of(made):
            model, versions = np.empty(made.elements, np.float32), []
            for turn in range(3):
                if asks_late and turn == 1:
                    assert gone_on.wait(SECONDS)
                versions.append(made.get(SERVER, model))
                np.testing.assert_array_equal(model, float(versions[-1]))
                push = made.push(SERVER, np.ones(made.elements, np.float32))
                if not asks_late and turn == 1:
                    push.wait()
                    gone_on.set()
            return versions

        return of

    results, _ = run([scheduler(params), server(params), worker(params, work(False)), worker(params, work(True))])
    raised(results)
    assert results[2:] == [[0, 2, 4]] * 2


def test_ssp_lets_nobody_run_ahead():
    params = FabricParams("ssp:1")
    begun = [0, 0]

    def counting(mine):
        def work(made):
            model = np.empty(made.elements, np.float32)
            for _ in range(6):
                made.get(SERVER, model)
                begun[mine] += 1
                ahead = begun[mine] - begun[1 - mine]
                made.push(SERVER, model).wait()
                assert ahead <= 2  # one iteration, and the other may be about to begin its own
            return made

        return work

    results, _ = run([scheduler(params), server(params), worker(params, counting(0)), worker(params, counting(1))])
    raised(results)


def test_the_model_in_two_parts():
    params = FabricParams("async:9")

    def work(made):
        outcomes, model = [], np.empty(made.elements, np.float32)
        for _ in range(3):
            made.get(SERVER, model)
            outcomes.append(made.push(SERVER, np.arange(made.elements, dtype=np.float32)).wait())
        return outcomes, model

    parts = [scheduler(params), server(params, 300, 0), server(params, 700, 1)]
    results, _ = run([*parts, worker(params, work, 1), worker(params, work, 1)])
    raised(results)
    count = applied(results[3][0]) + applied(results[4][0])
    model = np.concatenate([results[1].snapshot()[0], results[2].snapshot()[0]])
    np.testing.assert_array_equal(model, count * np.arange(1000, dtype=np.float32))
    assert results[1].version == results[2].version == count


def test_callbacks():
    """An application of its own: what comes is put into the largest so far, and what goes is its negative."""
    params = FabricParams("async:5")

    def serve(fabric):
        made = fabric.register_as_server(params, np.zeros(ELEMENTS, np.float32))
        made.register_update_callback(lambda model, update, count: np.maximum(model, update, out=model))
        made.register_request_callback(np.negative)
        made.serve(SECONDS)
        return made

    def work(made):
        model = np.empty(made.elements, np.float32)
        made.get(SERVER, model)
        for value in (3.0, 1.0, 2.0):
            made.push(SERVER, np.full(made.elements, value, np.float32)).wait()
        return made.get(SERVER, model), model

    results, _ = run([scheduler(params), serve, worker(params, work)])
    raised(results)
    assert results[2][0] == 3
    np.testing.assert_array_equal(results[2][1], -3.0)


def test_a_callback_that_raises_ends_the_job():
    def serve(fabric):
        made = fabric.register_as_server(PARAMS, np.zeros(ELEMENTS, np.float32))
        made.register_update_callback(lambda model, update, count: 1 / 0)
        made.serve(SECONDS)

    results, _ = run([scheduler(PARAMS), serve, worker(PARAMS, pushing(1))])
    for result in results:
        assert isinstance(result, GangError)
        assert "division by zero" in str(result)


@pytest.mark.parametrize(("bound", "aggregators"), crossed([0.5, 100.0, 1e9], [0, 2], quick=[(0.5, 2), (100.0, 0)]))
def test_replica_stays_within_the_bound(bound, aggregators):
    params = FabricParams("async:30", divergence_bound=bound * np.sqrt(ELEMENTS), momentum=0.25)
    workers = [worker(params, pushing(6, 0.1), aggregators)] * 2
    results, _ = run([scheduler(params), server(params), replica(SERVER, params), *workers])
    raised(results)
    served, copied = results[1].snapshot()[0], results[2].snapshot()[0]
    assert np.linalg.norm(served - copied) <= params.divergence_bound
    assert results[1].version > 0
    if bound == 0.5:
        assert results[2].version > 0
