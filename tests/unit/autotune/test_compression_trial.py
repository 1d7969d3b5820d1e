"""Dense or sparse steps, by trying both."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.autotune.compression_trial import Trial
from tests.unit.strategies.test_compression import net, trained, values


def tried(**seconds: list[float]) -> Trial:
    trial = Trial()
    while not trial.is_due:
        trial.record(seconds[trial.kind].pop(0))
    return trial


@pytest.mark.parametrize(("sparse", "chosen"), [(0.5, "sparse"), (0.97, "sparse"), (0.99, "dense"), (1.5, "dense")])
def test_the_faster_is_chosen_and_dense_if_they_are_equal(sparse: float, chosen: str) -> None:
    trial = tried(dense=[9.0, 1.0, 1.0, 1.0] * 2, sparse=[0.01, sparse, sparse, sparse] * 2)
    trial.choose([trial.measurements()])
    assert trial.chosen == trial.kind == chosen
    assert trial.seconds == {"dense": 1.0, "sparse": sparse}
    assert not trial.is_due


def test_blocks_of_steps_are_dense_and_sparse_in_turn_and_one_that_is_disturbed_tells_nothing() -> None:
    trial, kinds = Trial(), []
    while not trial.is_due:
        kinds.append(trial.kind)
        trial.record(100.0 if len(kinds) in (3, 7) else {"dense": 2.0, "sparse": 1.0}[trial.kind])
    assert kinds == (["dense"] * 4 + ["sparse"] * 4) * 2
    assert trial.measurements() == {"dense": 2.0, "sparse": 1.0, "lost": 0.0}


def test_the_slowest_rank_counts() -> None:
    trial = Trial()
    trial.choose([{"dense": 1.0, "sparse": 0.5, "lost": 0.0}, {"dense": 1.1, "sparse": 2.0, "lost": 0.0}])
    assert (trial.chosen, trial.seconds) == ("dense", {"dense": 1.1, "sparse": 2.0})


@given(st.floats(0.2, 5.0), st.floats(0.2, 5.0), st.integers(1, 4))
@pytest.mark.slow
def test_trying_again_costs_a_hundredth_as_far_as_is_known(before: float, now: float, trials: int) -> None:
    trial = tried(dense=[1.0] * 8, sparse=[before] * 8)
    for _ in range(trials):
        trial.choose([trial.measurements()])
        chosen, fastest = trial.chosen, min(1.0, before)
        steps = lost = 0.0
        while not trial.is_due:
            took = {"dense": 1.0, "sparse": before}[trial.kind]  # as the last trial tells
            trial.record({"dense": 1.0, "sparse": now}[trial.kind])
            steps, lost = steps + 1, lost + took - fastest
            assert trial.chosen == chosen
        margin = 0.02 * steps  # dense steps are chosen if sparse ones are faster by less
        assert steps >= 100
        assert lost <= fastest * (0.01 * steps + margin) + 1e-9
        before = now
    trial.choose([trial.measurements()])
    assert trial.chosen == ("sparse" if now < 0.98 else "dense")


@given(st.floats(1.0, 3.0))
def test_steps_that_are_slow_because_kinds_change_are_paid_for(slower: float) -> None:
    trial, lost = tried(dense=[1.0] * 8, sparse=[1.0] * 8), 0.0
    for _ in range(3):
        trial.choose([trial.measurements()])
        steps = 0
        while trial.kind == "dense":  # the last ones are the next trial's first block
            trial.record(1.0)
            steps += 1
        assert steps >= 100
        assert lost <= 0.01 * steps
        lost = 0.0
        while not trial.is_due:
            trial.record(slower)
            lost += slower - 1.0


@pytest.mark.parametrize("strategy", ["ring", "hitopk"])
def test_all_ranks_choose_the_same_for_each_density(strategy: str) -> None:
    settings: dict[str, Any] = {"strategy": strategy, "topology": "hosts:2x2", "compression": "topk:0.1"}
    loops = trained(net, {**settings, "compression_schedule": "auto,warmup:16"}, epochs=40)
    values(loops)
    told = [loop.strategy.details()["compression"] for loop in loops]
    assert told == [told[0]] * 4
    assert [one["density"] for one in told[0]] == [0.25, 0.1]
    for one in told[0]:
        assert one["steps"] in ("dense", "sparse")
        assert sorted(one["seconds"]) == ["dense", "sparse"]


def test_a_run_that_ends_within_the_trial_says_that_nothing_was_chosen() -> None:
    settings = {"strategy": "ring", "compression": "topk:0.1", "compression_schedule": "auto"}
    loops = trained(net, settings, epochs=3)
    assert loops[0].strategy.details() == {"compression": [{"density": 0.1, "steps": None, "seconds": {}}]}


def test_without_a_trial_the_summary_says_nothing_of_it() -> None:
    assert trained(net, {"strategy": "ring", "compression": "topk:0.1"}, epochs=1)[0].strategy.details() == {}
