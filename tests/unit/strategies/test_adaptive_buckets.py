"""What ranks measured goes to the executor of rank 0, and what it decides to all ranks."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.strategies.ps.adaptive_buckets import AdaptiveBuckets
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
