"""What steps are predicted to take by strategies that auto may choose, beside bounds and the simulator of all-reduces."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.autotune.choice import MARGIN, Candidate, find_candidates
from sparkdl_comm.autotune.prediction import StepPredictor, StepTimings, plan_candidate, predict_step_seconds
from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.conf import CommConf
from sparkdl_comm.conf.strategy import CHEAPEST
from sparkdl_comm.jvm.planner import Bucketing, plan_buckets
from sparkdl_comm.sim.server_run import Overhead
from sparkdl_comm.sim.step_run import Bucket, ComputeTimings, decoupled_seconds
from sparkdl_comm.sim.step_run import step_seconds as simulated_seconds
from sparkdl_comm.space.parameter_space import ParameterSpace
from sparkdl_comm.topology import Topology
from tests.draws import examples

shapes = st.lists(st.integers(1, 1 << 20), min_size=1, max_size=8)
parts = st.lists(st.floats(0.001, 1.0), min_size=8, max_size=8)


def space_of(sizes: list[int]) -> ParameterSpace:
    return ParameterSpace({f"layer{number}.weight": [size] for number, size in enumerate(sizes)})


def computing_of(sizes: list[int], seconds: list[float]) -> StepTimings:
    """Backward goes from the last layer to the first."""
    arrivals = tuple(sum(seconds[number : len(sizes)]) for number in range(len(sizes)))
    return StepTimings(0.5 * arrivals[0], arrivals[0], 0.01, arrivals)


def conf(**changes: Any) -> CommConf:
    return CommConf.from_mapping({}, strategy="auto", **changes)


@given(shapes, parts, parts, parts, st.booleans())
def test_a_step_takes_as_long_as_computing_and_as_what_travels_and_not_longer_than_both(
    sizes: list[int], seconds: list[float], first: list[float], second: list[float], gathers: bool
) -> None:
    space, computing = space_of(sizes), computing_of(sizes, seconds)
    buckets = space.buckets((1 << 20) / 4)
    there, back = first[: len(buckets)], second[: len(buckets)] if gathers else None
    found = predict_step_seconds(computing, space, buckets, there, back)
    computed = computing.forward + computing.backward + computing.update
    travels = sum(there) + sum(back or ())
    assert max(computed, travels) <= found * (1 + 1e-9)
    assert found <= (computed + travels) * (1 + 1e-9)


@examples(25)
@given(
    st.lists(st.sampled_from([1 << 18, 1 << 20]), min_size=1, max_size=6),
    st.floats(0.02, 0.5),
    st.sampled_from(["ring", "bml", "lp"]),
)
@pytest.mark.parametrize("loop", ["all-reduce", "decoupled"])
def test_steps_as_the_simulator_has_them(loop: str, sizes: list[int], seconds: float, name: str) -> None:
    topology, cost = Topology.parse("star:4"), Cost((8 / 1e9,))
    space, computing = space_of(sizes), computing_of(sizes, [seconds] * 8)
    candidate = Candidate(name, loop, CommConf.from_mapping({}, strategy=name, bucket=1 << 20, loop=loop))
    found = StepPredictor(space, topology, cost).predict(candidate, computing)
    arrivals = {entry.start: arrival for entry, arrival in zip(space.entries, computing.arrivals, strict=True)}
    buckets = tuple(Bucket(stop - start, arrivals[start]) for start, stop in space.buckets((1 << 20) / 4))
    simulated = ComputeTimings(computing.forward, computing.backward, buckets, computing.update)
    taken = decoupled_seconds if loop == "decoupled" else simulated_seconds
    assert found == pytest.approx(taken(name, topology, simulated, cost), rel=0.1)


def names(found: list[Candidate]) -> set[str]:
    return {candidate.name for candidate in found}


def test_all_that_fit() -> None:
    found, left_out = find_candidates(
        conf(), Topology.parse("star:4"), why_not_striped=None, why_no_plugin=None, why_no_planner=None
    )
    assert found[0].name == CHEAPEST
    assert {"ring", "lp", "ring+decoupled", "lp+decoupled", "ps+whole", "ps+layerwise", "ps+ibatch"} <= names(found)
    assert not any(name.startswith(("fabric", "hitopk", "hierarchical")) for name in names(found))
    assert left_out == {}
    found, left_out = find_candidates(
        conf(), Topology.parse("bcube:2,2"), why_not_striped="odd", why_no_plugin="no plugin", why_no_planner=None
    )
    assert names(found) == {CHEAPEST, "bml", "lp", "ring", "torus2d", "p2p-ps"}
    assert left_out["ps+whole"] == "no plugin"
    assert left_out["bml+decoupled"] == "odd"
    named = conf(auto_candidates=("ring+decoupled+ibatch", "ring"))
    found, left_out = find_candidates(
        named, Topology.parse("star:4"), why_not_striped=None, why_no_plugin=None, why_no_planner="no Java"
    )
    assert names(found) == {"ring"}
    assert left_out["ring+decoupled+ibatch"] == "no Java"


@pytest.mark.parametrize(
    ("changes", "able_ones", "why"),
    [
        ({"compression": "mstopk:0.01"}, {CHEAPEST, "hitopk", "ps+whole", "ps+layerwise", "ps+ibatch"}, None),
        ({"compression": "powersgd:2"}, {CHEAPEST}, "strategy hitopk sends the largest"),
        ({"compression": "topk:0.01", "compression_momentum": 0.9}, {CHEAPEST}, "the state of powersgd"),
        ({"compression": "topk:0.01", "compression_schedule": "auto"}, {CHEAPEST}, "has a trial of its own"),
        ({"auto_candidates": ("lp", "ring+decoupled")}, {"lp", "ring+decoupled"}, "not in spark.sparkdl.comm.auto"),
        ({"auto_candidates": ("lp", "ring+decoupled+ibatch")}, {"lp", "ring+decoupled+ibatch"}, None),
    ],
)
def test_what_the_conf_allows(changes: dict[str, Any], able_ones: set[str], why: str | None) -> None:
    found, left_out = find_candidates(
        conf(**changes), Topology.parse("star:4"), why_not_striped=None, why_no_plugin=None, why_no_planner=None
    )
    assert names(found) == able_ones
    assert any((why or "") in reason for reason in left_out.values()) or why is None


@pytest.mark.parametrize(
    ("batching", "settling"),
    [
        ("whole", {"ps+whole": 2}),
        ("layerwise", {"ps+layerwise": 2}),
        ("ibatch", {"ps+whole": 2, "ps+layerwise": 2, "ps+ibatch": 4}),
        ("paper", {"ps+paper": 4}),
        ("fixed:1000", {"ps+fixed:1000": 2}),
        ("parts:24", {"ps+parts:24": 4}),
    ],
)
def test_batchings_of_the_parameter_server_have_time_to_settle(batching: str, settling: dict[str, int]) -> None:
    found, _ = find_candidates(
        conf(ps_batching=batching),
        Topology.parse("star:4"),
        why_not_striped=None,
        why_no_plugin=None,
        why_no_planner=None,
    )
    served = [candidate for candidate in found if candidate.conf.strategy == "ps"]
    assert {candidate.name: candidate.settling for candidate in served} == settling
    for candidate in served:
        assert candidate.conf.ps.profile_iterations == (2 if candidate.settling == 4 else 10)


def served(sizes: list[int], seconds: list[float], cost: Cost) -> dict[str, float]:
    """What batchings of the parameter server are predicted to take. Its overhead is that of some messages."""
    topology = Topology.parse("star:4")
    server = Overhead(3 * cost.alpha, cost.alpha)
    predictor, computing = StepPredictor(space_of(sizes), topology, cost, server), computing_of(sizes, seconds)
    found, _ = find_candidates(conf(), topology, why_not_striped=None, why_no_plugin=None, why_no_planner=None)
    ways = [each for each in found if each.conf.strategy == "ps"]
    return {each.conf.ps.batching: predictor.predict(each, computing) for each in ways}


@examples(50)
@given(shapes, parts, st.floats(1e-6, 1e-2), st.floats(1e7, 1e11))
def test_a_plan_of_batches_is_predicted_to_gain_or_to_take_what_plain_ones_do(
    sizes: list[int], seconds: list[float], alpha: float, rate: float
) -> None:
    taken = served(sizes, seconds, Cost((8 / rate,), alpha))
    plain = min(taken["whole"], taken["layerwise"])
    assert taken["ibatch"] == plain or taken["ibatch"] < (1 - MARGIN) * plain
    computing = computing_of(sizes, seconds)
    assert taken["ibatch"] >= (computing.forward + computing.backward) * (1 - 1e-9)
    if len(sizes) == 1:
        assert taken["ibatch"] == plain, "there is nothing to cut"


@examples(50)
@given(shapes, parts, st.floats(1e-6, 1e-3), st.floats(2.0, 10.0))
def test_messages_that_cost_more_make_batches_slower(
    sizes: list[int], seconds: list[float], alpha: float, factor: float
) -> None:
    cheap, dear = (served(sizes, seconds, Cost((8 / 1e9,), each)) for each in (alpha, factor * alpha))
    # With one batch nothing overlaps: overhead, a request and an answer each way, and the batch to handle.
    assert dear["whole"] - cheap["whole"] == pytest.approx((factor - 1) * alpha * (2 * (3 + 2) + 1))
    # A batch that comes later may be overtaken by one that is wanted sooner, which saves at most what it takes itself.
    overtaken = 4 * sum(sizes) * 8 / 1e9
    assert dear["layerwise"] >= cheap["layerwise"] * (1 - 1e-9) - overtaken


def test_many_small_layers_are_for_a_plan() -> None:
    taken = served([1 << 12] * 64, [0.002] * 64, Cost((8 / 1e8,), 5e-4))
    assert taken["ibatch"] < min(taken["whole"], taken["layerwise"])


def test_resync_is_for_those_that_update_all_parameters() -> None:
    found, left_out = find_candidates(
        conf(resync=5), Topology.parse("star:4"), why_not_striped=None, why_no_plugin=None, why_no_planner=None
    )
    assert {"lp", "mst"} <= names(found)
    assert "ps+whole" in left_out
    assert "does no broadcast" in left_out["ring"]


def test_slow_links_are_for_what_sends_least_and_shares_the_work() -> None:
    topology = Topology.parse("star:4")
    sizes, seconds = [1 << 20] * 6, [0.02] * 8
    found, _ = find_candidates(conf(), topology, why_not_striped=None, why_no_plugin=None, why_no_planner=None)
    predicted = {
        rate: {
            each.name: StepPredictor(space_of(sizes), topology, Cost((8 / rate,)), Overhead(0.0, 0.0)).predict(
                each, computing_of(sizes, seconds)
            )
            for each in found
        }
        for rate in (5e7, 1e11)
    }
    slow, fast = predicted[5e7], predicted[1e11]
    assert slow["ring+decoupled"] < slow["ring"] < slow["mst"]
    assert fast["ring"] == pytest.approx(0.19, rel=0.1), "computing alone"
    assert slow["ps+layerwise"] < slow["ps+whole"]


#: With one batch, 8 ms of a step in which nothing is computed.
MEASURED = Overhead(startup=0.003, handling=0.002)


def ranked(topology: str, sizes: list[int], computing: StepTimings, cost: Cost, server: Overhead) -> list[str]:
    """All candidates, the one that is predicted to be the fastest first."""
    network = Topology.parse(topology)
    found, _ = find_candidates(conf(), network, why_not_striped=None, why_no_plugin=None, why_no_planner=None)
    predictor = StepPredictor(space_of(sizes), network, cost, server)
    return [each.name for each in sorted(found, key=lambda each: predictor.predict(each, computing))]


def test_small_models_are_not_for_the_server_as_its_way_through_the_jvm_takes_longer_than_they_do() -> None:
    """72,000 parameters on one machine: a step took 12 to 15 ms with ps, 2.5 to 3.2 with ring."""
    sizes = [16_640, 51_400, 4_020]
    computing, cost = StepTimings(4e-4, 1e-3, 2e-4, (1e-3, 7e-4, 3e-4)), Cost((8 / 2e10,), 1.5e-4)
    names = ranked("star:2", sizes, computing, cost, MEASURED)
    assert set(names[-3:]) == {"ps+whole", "ps+layerwise", "ps+ibatch"}
    predictor = StepPredictor(space_of(sizes), Topology.parse("star:2"), cost, MEASURED)
    found, _ = find_candidates(
        conf(), Topology.parse("star:2"), why_not_striped=None, why_no_plugin=None, why_no_planner=None
    )
    [whole] = [predictor.predict(each, computing) for each in found if each.name == "ps+whole"]
    assert 2 * MEASURED.startup + MEASURED.handling < whole < 0.012


def test_large_models_on_slow_links_are_for_the_server_all_the_same() -> None:
    """16 MiB at 200 Mbit/s."""
    sizes = [1 << 18] * 16
    computing = computing_of(sizes, [0.03] * 16)
    assert ranked("star:4", sizes, computing, Cost((8 / 2e8,), 2e-4), MEASURED)[0].startswith("ps+")


def planned_by(
    plan: Any, sizes: list[int], seconds: list[float], cost: Cost, name: str = "ring"
) -> tuple[StepPredictor, StepTimings, Candidate]:
    predictor, computing = StepPredictor(space_of(sizes), Topology.parse("star:4"), cost), computing_of(sizes, seconds)
    candidate = Candidate.decoupled(name, conf(), is_planned=True)
    return predictor, computing, plan_candidate(predictor, candidate, computing, plan)


@examples(50)
@given(shapes, parts, st.floats(0.0, 1e-2), st.data())
def test_planned_buckets_cover_the_vector_and_are_the_fewest_of_the_fast_ones(
    sizes: list[int], seconds: list[float], alpha: float, data: st.DataObject
) -> None:
    layers = len(sizes)
    cuts = (
        st.sets(st.integers(1, layers - 1)).map(lambda inner: [*sorted(inner), layers]) if layers > 1 else st.just([1])
    )
    asked: list[Any] = []
    given_ones: list[list[int]] = []

    def plan(requests: Any) -> list[Bucketing]:
        asked.extend(requests)
        given_ones.extend(data.draw(cuts) for _ in requests)
        made = [[[first + 1, last] for first, last in pairwise([0, *ends])] for ends in given_ones]
        travelling = [
            each if of["direction"] == "pull" else each[::-1] for each, of in zip(made, requests, strict=True)
        ]
        return [Bucketing(batches, 0.0, 1.0, []) for batches in travelling]

    predictor, computing, found = planned_by(plan, sizes, seconds, Cost((8 / 1e9,), alpha))
    assert found.parts is not None
    assert found.parts[0][1] == sum(sizes)
    assert [start for start, _ in found.parts] == [*(stop for _, stop in found.parts[1:]), 0]
    starts = [0, *accumulate(sizes)]
    assert {start for start, _ in found.parts} <= set(starts), "buckets end where layers do"
    cuts_made = [
        tuple((starts[first], starts[last]) for first, last in pairwise([0, *ends]))[::-1] for ends in given_ones
    ]
    taken = {parts: predictor.predict(replace(found, parts=parts), computing) for parts in cuts_made}
    ours = predictor.predict(found, computing)
    assert ours <= (1 + MARGIN) * min(taken.values())
    assert not any(len(parts) < len(found.parts) and seconds <= ours for parts, seconds in taken.items())
    for request in asked:
        pulls = request["direction"] == "pull"
        whole = sum(predictor.predict_halves(found.conf, [sum(sizes)])[pulls])
        assert request["startup"] + sum(request["transfer"]) == pytest.approx(whole)
        assert sum(request["compute"]) == pytest.approx(computing.forward if pulls else computing.backward)
        assert request["transfer"] == pytest.approx([request["transfer"][0] / sizes[0] * size for size in sizes])


@pytest.mark.parametrize(("alpha", "most"), [(0.0, 64), (2e-3, 16)])
def test_planned_buckets_are_fewer_where_they_cost_more(alpha: float, most: int) -> None:
    """By the planner itself; no slower than one bucket, than one for each layer, and than those that are not planned."""
    sizes, seconds = [1 << 14] * 64, [0.002] * 64
    predictor, computing, found = planned_by(plan_buckets, sizes, seconds, Cost((8 / 1e8,), alpha))
    assert found.parts is not None
    assert 1 < len(found.parts) <= most
    space = space_of(sizes)
    for least in (1, sum(sizes), (4 << 20) / 4):
        other = replace(found, parts=tuple(space.buckets(least)))
        assert predictor.predict(found, computing) <= predictor.predict(other, computing) * (1 + MARGIN)
