"""When ranks plan, and what they try."""

import json

import pytest
from torch import nn

from sparkdl_comm.conf import CommConf
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.ps.adaptive_buckets import AdaptiveBuckets
from sparkdl_comm.strategies.ps.profiler import Profiler, agreed_seconds

from .test_profiler import report


class Gang:
    """This rank, and one that reports the same."""

    world = 2
    rank = 0

    def all_gather(self, value: bytes, timeout: float) -> list[bytes]:
        return [value, value]


class Planner:
    """Cuts as asked for by policy: the real one is tested elsewhere."""

    def __init__(self) -> None:
        self.requests: list[dict] = []

    def __call__(self, **request: object) -> dict:
        self.requests.append(request)
        if "pull" in request:
            plan = {"batches": [[1, 1], [2, 2]], "predicted_seconds": 0.75, "optimal_ratio": 1.0}
            chosen = {"pull": plan, "push": {**plan, "batches": [[1, 2]]}}
            given = {
                name: {**plan, "batches": asked["batches"]}
                for name, asked in request.items()
                if isinstance(asked, dict) and "batches" in asked
            }
            return {**chosen, **given, "iteration_seconds": 1.25}
        batches = [[1, 2]] if request["policy"] == "whole" else [[1, 1], [2, 2]]
        return {"batches": batches, "predicted_seconds": 0.75, "optimal_ratio": 1.0}


def adaptive(ahead: bool = False, gang: Gang | None = None, **settings: object) -> tuple[AdaptiveBuckets, Planner]:
    planner = Planner()
    model = FlatModel(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)))
    conf = CommConf.from_mapping({}, **settings)
    made = AdaptiveBuckets(conf, model, gang or Gang(), planner, ahead=ahead, inline_threshold=10)  # type: ignore[arg-type]
    return made, planner


def test_rank_0_plans_for_all():
    def replanned(gang: Gang) -> tuple[AdaptiveBuckets, int]:
        made, planner = adaptive(ahead=True, gang=gang, ps_batching="ibatch", ps_profile_iterations=5)
        asked = len(planner.requests)
        both = report(0.001, 2e-9, [0.5, 0.25])
        both["push"] = both["pull"]
        made.profiler.report = lambda: both  # type: ignore[method-assign, union-attr]
        assert made.replan() is not None
        return made, len(planner.requests) - asked

    planned = []

    class First(Gang):
        def all_gather(self, value: bytes, timeout: float) -> list[bytes]:
            planned.append(value)
            return super().all_gather(value, timeout)

    class Second(Gang):
        rank = 1

        def all_gather(self, value: bytes, timeout: float) -> list[bytes]:
            return [planned.pop(0), value]

    (first, asked), (second, asked_there) = replanned(First()), replanned(Second())
    assert asked == 1
    assert asked_there == 0
    assert second.plans == first.plans


def test_blind_policies_measure_nothing():
    made, planner = adaptive(ps_batching="layerwise", ps_push_batching="fixed:10")
    assert made.profiler is None
    assert not any(made.due(step) for step in range(200))
    assert [(request["policy"], request["direction"]) for request in planner.requests] == [
        ("layerwise", "pull"),
        ("fixed:10", "push"),
    ]
    assert planner.requests[0]["bytes"] == [64, 20]


def test_a_profile_comes_first_and_a_new_plan_when_it_drifts():
    made, planner = adaptive(ps_batching="ibatch", ps_profile_iterations=5, ps_replan_drift=0.25)
    assert len(made.pulls) == 1
    assert [step for step in range(1, 120) if made.due(step)] == [6, 56, 106]
    assert isinstance(made.profiler, Profiler)
    assert made.replan() is None, "nothing was measured"
    measured = report(0.001, 2e-9, [0.5, 0.25])
    made.profiler.report = lambda: json.loads(json.dumps(measured))  # type: ignore[method-assign]
    pulls, pushes = made.replan()
    assert (len(pulls), len(pushes)) == (2, 1), "pushes were not measured"
    request = planner.requests[-2]
    assert (request["policy"], request["startup"], request["compute"]) == ("ibatch", 0.001, [0.5, 0.25])
    profile = {name: request[name] for name in ("startup", "transfer", "compute", "bytes", "notice_bytes")}
    assert profile["notice_bytes"] == 20, "both servers have half of a batch"
    planned = {"policy": "ibatch", "batches": [[1, 1], [2, 2]], "predicted_seconds": 0.75, "optimal_ratio": 1.0}
    planned["profile"] = profile
    assert made.plans == {"pull": planned, "push": {"policy": "whole", "batches": [[1, 2]]}}
    assert request["transfer"] == pytest.approx([64e-9, 20e-9]), "one of two ranks has half of each layer"
    measured["pull"]["startup"] = 0.0012
    assert made.replan() is None
    measured["pull"]["startup"] = 0.0013
    assert made.replan() is not None


def test_what_shares_the_network_is_planned_together():
    made, planner = adaptive(ahead=True, ps_batching="ibatch", ps_profile_iterations=5)
    both = report(0.001, 2e-9, [0.5, 0.25])
    both["push"] = both["pull"]
    made.profiler.report = lambda: both  # type: ignore[method-assign]
    pulls, pushes = made.replan()
    assert (len(pulls), len(pushes)) == (2, 1)
    assert planner.requests[-1]["push"]["compute"] == [0.5, 0.25]
    assert {plan["iteration_seconds"] for plan in made.plans.values()} == {1.25}
    assert made.plans["push"]["profile"] == planner.requests[-1]["push"]


def trying(seconds: list[float], tried: int) -> tuple[AdaptiveBuckets, Planner, list[tuple[int, int] | None]]:
    """What an iteration took whenever the ranks looked at it -> how many batches of pulls and pushes they had from then
    on."""
    made, planner = adaptive(ahead=True, ps_batching="ibatch", ps_profile_iterations=5)
    both = report(0.001, 2e-9, [0.5, 0.25])
    both["push"] = both["pull"]
    found = []
    for number, each in enumerate(seconds):
        made.profiler.report = lambda each=each: {**both, "seconds": each}  # type: ignore
        assert [step for step in range(1, 60) if made.due(step)] == (
            [6, 11, 16, 21, 26, 31, 36, 41, 46, 51, 56] if 0 < number < tried else [6, 56]
        )
        batches = made.replan()
        found.append(batches and (len(batches[0]), len(batches[1])))
    return made, planner, found


def outcomes(made: AdaptiveBuckets) -> set[str]:
    report = made.report()
    assert {plan["asked"] for plan in report.values()} == {"ibatch"}
    return {plan["outcome"] for plan in report.values()}


def test_a_summary_tells_what_was_rejected_from_what_was_never_tried():
    made, _ = adaptive(ahead=True, ps_batching="ibatch", ps_profile_iterations=5)
    (outcome,) = outcomes(made)
    assert outcome.startswith(
        "not tried: nothing was measured in 5 iterations (spark.sparkdl.comm.ps.profileIterations)"
    )
    assert outcomes(trying([3.0, 1.0, 0.99], tried=3)[0]) == {"tried, and used"}
    assert outcomes(trying([0.8, 1.0, 0.9], tried=3)[0]) == {"tried, and rejected: whole was faster"}
    assert outcomes(trying([3.0, 1.0], tried=3)[0]) == {"used: on trial when the run ended, layerwise in use"}
    blind, _ = adaptive(ps_batching="layerwise")
    assert {(plan["asked"], plan["outcome"]) for plan in blind.report().values()} == {("layerwise", "used")}


def test_a_plan_stays_if_nothing_plainer_is_faster():
    made, planner, found = trying([3.0, 1.0, 0.99, 5.0], tried=3)
    assert found == [(2, 1), (2, 2), (2, 1), None]
    assert planner.requests[-2]["pull"]["batches"] == [[1, 1], [2, 2]]
    assert "batches" not in planner.requests[-1]["pull"]
    assert {json.dumps(plan["tried"]) for plan in made.plans.values()} == {
        json.dumps({"whole": 3.0, "ibatch": 1.0, "layerwise": 0.99})
    }


def test_what_is_faster_than_the_plan_is_taken():
    made, _, found = trying([3.0, 1.0, 0.9], tried=3)
    assert found == [(2, 1), (2, 2), None]
    assert made.plans["pull"]["tried"]["layerwise"] == 0.9
    assert outcomes(made) == {"tried, and rejected: layerwise was faster"}
    made, planner, found = trying([0.8, 1.0, 0.9], tried=3)
    assert found == [(2, 1), (2, 2), (1, 1)]
    assert planner.requests[-1]["push"]["batches"] == [[1, 2]]
    assert made.plans["push"]["batches"] == [[1, 2]]


def test_a_new_plan_is_tried_if_it_has_other_batches():
    made, _, _ = trying([3.0, 1.0, 0.9], tried=3)  # it stays with layerwise
    both = report(0.002, 2e-9, [0.5, 0.25])
    both["push"] = both["pull"]
    made.profiler.report = lambda: {**both, "seconds": 2.0}  # type: ignore
    pulls, pushes = made.replan()
    assert (len(pulls), len(pushes)) == (2, 1)
    both["pull"]["startup"] = 0.009
    assert made.replan() is None, "what was known of layerwise is known: the trial is of the plan alone"
    assert made.plans["pull"]["tried"] == {"layerwise": 2.0, "ibatch": 2.0}
    made.replan()
    assert "tried" not in made.plans["pull"]
    assert not made.due(11), "the same batches as before need no trial"


def test_iterations_are_timed_without_those_that_change_batches():
    now = [0.0]
    profiler = Profiler(2, 5, lambda: now[0])
    assert "seconds" not in profiler.report()
    for taken in [0, 9, 9, 1, 2, 3]:
        now[0] += taken
        profiler.iteration()
    assert profiler.report()["seconds"] == 2
    hasty = Profiler(2, 2, lambda: now[0])
    for _ in range(9):
        hasty.iteration()
    assert "seconds" not in hasty.report(), "all of its iterations have batches that change"
    assert agreed_seconds([{"seconds": 1}, {}, {"seconds": 4}, {"seconds": 2}]) == 2
    assert agreed_seconds([{}]) is None
