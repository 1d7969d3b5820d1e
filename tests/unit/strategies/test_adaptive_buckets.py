"""What ranks measure of their computing goes to the executor of rank 0, and what it decides to all ranks.

NetworkTimesSpec.scala tests what executors measure.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.strategies.ps.adaptive_buckets import AdaptiveBuckets, LayerTimes, Profiler
from tests.unit.gang_helpers import SECONDS, gang_of

WHOLE = {"pull": [[1, 3]], "push": [[1, 3]], "next_look": 6}
NOTHING = {"forward": None, "backward": None, "update": 0.0, "seconds": None}


class FakeSession:
    """The executor of one rank: answers with the next of ``answers``, and keeps what it was asked."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[list[dict[str, Any]]] = []

    def report_measurements(self, computing: dict[str, Any]) -> dict[str, Any]:
        return {"pull": None, "push": None, "seconds": computing["seconds"]}

    def replan(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        self.asked.append(reports)
        return self.answers.pop(0)


def adaptive(session: FakeSession, gang: Gang | None = None, first: dict[str, Any] = WHOLE) -> AdaptiveBuckets:
    return AdaptiveBuckets(session, gang, first, 5, SECONDS)  # type: ignore[arg-type]


def test_rank_0_decides_for_all():
    cut = {"planned": True, "pull": [[1, 1], [2, 3]], "push": [[3, 3], [1, 2]], "next_look": 11}
    kept = {**cut, "planned": False, "next_look": 56}
    sessions = [FakeSession(cut, kept), FakeSession(), FakeSession()]
    with gang_of(3) as gangs, ThreadPoolExecutor(3) as threads:
        ranks = [adaptive(session, gang) for session, gang in zip(sessions, gangs, strict=True)]
        for rank, buckets in enumerate(ranks):
            buckets.profiler.get_times = lambda rank=rank: {**NOTHING, "seconds": float(rank)}  # type: ignore
            assert (len(buckets.pulls), [step for step in range(70) if buckets.is_due(step)]) == (1, [6])
        assert list(threads.map(AdaptiveBuckets.replan, ranks, timeout=SECONDS)) == [True, True, True]
        for buckets in ranks:
            assert (buckets.pulls.pairs, buckets.pushes.pairs) == (cut["pull"], cut["push"])
            assert [step for step in range(70) if buckets.is_due(step)] == [11]
        assert list(threads.map(AdaptiveBuckets.replan, ranks, timeout=SECONDS)) == [False, False, False]
        assert all(buckets.is_due(56) and not buckets.is_due(11) for buckets in ranks)
    reports = [{"pull": None, "push": None, "seconds": float(rank)} for rank in range(3)]
    assert [session.asked for session in sessions] == [[reports, reports], [], []]


def test_where_nothing_is_looked_at_nothing_is_measured():
    buckets = adaptive(FakeSession(), first={**WHOLE, "next_look": None})
    assert buckets.profiler is None
    assert not any(buckets.is_due(step) for step in range(200))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_forward_counts_for_the_layer_in_use_and_waits_for_none():
    clock = Clock()
    times = LayerTimes(2, window=3, clock=clock)
    assert times.medians() is None
    for slow in (1, 1, 50):  # an outlier
        times.begin()
        clock.now += 9
        times.start_layer(0)
        clock.now += 2 * slow
        times.stop()
        clock.now += 7
        times.start_layer(1)
        clock.now += 3
        times.end()
    assert times.medians() == [2, 3]


def test_backward_counts_for_the_layer_whose_gradient_is_there():
    clock = Clock()
    times = LayerTimes(3, window=1, clock=clock)
    for seconds in (100, 1):  # the window has room for the last
        times.begin()
        for layer in (2, 2, 0):
            clock.now += seconds
            times.record_layer(layer)
        clock.now += seconds
        times.end()
    assert times.medians() == [1, 0, 2]


def test_updates_are_of_a_step():
    clock = Clock()
    profiler = Profiler(1, 9, clock)
    assert profiler.get_times() == {"forward": None, "backward": None, "update": 0.0, "seconds": None}
    for updated in (1.0, 1.5, 2.5, 3.25):
        profiler.begin_iteration(updated)
        profiler.backward.begin()
        clock.now += 2
        profiler.backward.record_layer(0)
        profiler.backward.end()
    assert profiler.get_times() == {"forward": None, "backward": [2], "update": 0.75, "seconds": 2}
    profiler.has_rounds = True
    assert profiler.get_times() == {"forward": None, "backward": None, "update": 0.75, "seconds": 2}


def test_iterations_are_timed_without_those_that_change_batches():
    clock = Clock()
    profiler = Profiler(2, 5, clock)
    assert profiler.get_times()["seconds"] is None

    def time(*seconds: float) -> float:
        for taken in seconds:
            clock.now += taken
            profiler.begin_iteration(0.0)
        return profiler.get_times()["seconds"]

    assert time(0, 9, 9, 1, 2, 3) == 2
    profiler.restart()  # the batches change
    assert time(9, 9) is None
    assert time(4, 4, 5) == 4
    hasty = Profiler(2, 2, clock)
    for _ in range(9):
        hasty.begin_iteration(0.0)
    assert hasty.get_times()["seconds"] is None, "all of its iterations have batches that change"
