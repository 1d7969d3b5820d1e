"""Workers find topics together over a fabric, in threads: the loops of python/lda.py and of the benchmark `fabric`."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from benchmarks.fabric.curve import Curve
from benchmarks.fabric.systems import serve_fabric, work_on_fabric
from benchmarks.fabric.topics import Topics

from sparkdl_comm.fabric.params import FabricParams
from tests.unit.benchmarks.test_topics import TOPICS, WORDS, drawn
from tests.unit.fabric_helpers import raised, run

WORKERS, SWEEPS = 3, 30
TASK = Topics(drawn(150, 1), drawn(40, 2), WORDS, TOPICS, seed=4)


def found_over(sync: str) -> tuple[np.ndarray, Curve, int]:
    """The model, how it became one, and the largest delay."""
    params, curve, model = FabricParams(sync), Curve(WORKERS), TASK.start()

    def rank_of_server(fabric):
        server = fabric.register_as_server(params, model)
        serve_fabric(server, curve)
        return server.largest_delay

    def rank_of(worker):
        def learn(fabric):
            learner = TASK.learner(worker, WORKERS)
            with fabric:
                work_on_fabric(fabric.register_as_worker(params, 0), 0, learner, SWEEPS * WORKERS, nullcontext)

        return learn

    results, _ = run([rank_of_server, *map(rank_of, range(WORKERS))])
    raised(results)
    return model, curve, results[0]


@pytest.mark.parametrize("sync", ["async:6", "async:1", "ssp:1", "bsp"])
def test_they_find_topics(sync: str) -> None:
    model, curve, delay = found_over(sync)
    counts = model.reshape(WORDS, TOPICS)
    assert counts.min() >= 0
    assert counts.sum() <= (TASK.training >= 0).sum()
    moments = curve.moments(TASK.score)
    assert moments[-1].updates >= SWEEPS * WORKERS
    assert moments[-1].score < 0.7 * moments[0].score
    if sync.startswith("async"):
        assert delay <= int(sync[6:])


def test_bsp_is_what_one_process_finds() -> None:
    model, _, _ = found_over("bsp")
    learners = [TASK.learner(worker, WORKERS) for worker in range(WORKERS)]
    expected = TASK.start()
    for _ in range(SWEEPS):
        updates = [learner.update(expected) for learner in learners]
        for learner, update in zip(learners, updates, strict=True):
            learner.settle(True)
            expected = expected + update
    assert np.array_equal(model, expected)
