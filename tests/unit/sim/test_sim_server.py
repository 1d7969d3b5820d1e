"""The parameter server in virtual time, beside what one can reckon."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.errors import InputError
from sparkdl_comm.sim.server_run import (
    SIMPLE_BATCHINGS,
    Overhead,
    ServerCost,
    TimedLayer,
    equal_cuts,
    iteration_seconds,
)

WHOLE = [(0, 2)]
LAYERWISE = [(0, 0), (1, 1), (2, 2)]


def _layers(*triples: tuple[float, float, float]) -> list[TimedLayer]:
    return [TimedLayer(*triple) for triple in triples]


def test_in_one_batch_nothing_overlaps():
    layers = _layers((1, 2, 10), (1, 3, 20), (2, 4, 30))
    cost = ServerCost(beta=0.1, startup=0.5, gap=0.25, summing=0.01, updating=0.02)
    assert iteration_seconds(layers, WHOLE, WHOLE, cost) == pytest.approx(0.5 + 6 + 4 + 9 + 0.5 + 6 + 0.6 + 1.2)


def test_layer_by_layer_the_link_is_busy_while_others_are_computed():
    # Computing takes longer than sending: what shows is the first layer's push and pull.
    layers = _layers((2, 4, 10), (2, 4, 10), (2, 4, 10))
    cost = ServerCost(beta=0.1, startup=0.0)
    assert iteration_seconds(layers, LAYERWISE, LAYERWISE, cost) == pytest.approx(18 + 1 + 1)


def test_start_ups_overlap_but_for_their_gaps():
    layers = _layers((0, 0, 1e-6), (0, 0, 1e-6), (0, 0, 1e-6))
    overlapping = ServerCost(beta=1.0, startup=1.0)
    # The next iteration begins when all is pushed and updated; then parameters are asked for, all at once.
    assert iteration_seconds(layers, LAYERWISE, LAYERWISE, overlapping) == pytest.approx(2.0, rel=1e-3)
    in_turn = ServerCost(beta=1.0, startup=1.0, gap=1.0)
    assert iteration_seconds(layers, LAYERWISE, LAYERWISE, in_turn) == pytest.approx(6.0, rel=1e-3)


def test_the_worker_handles_each_batch_of_gradients():
    layers = _layers((1, 2, 1e-6), (1, 2, 1e-6), (1, 2, 1e-6))
    cost = ServerCost(beta=1e-3, startup=0.0, handling=0.5)
    assert iteration_seconds(layers, WHOLE, WHOLE, cost) == pytest.approx(9 + 0.5)
    assert iteration_seconds(layers, LAYERWISE, LAYERWISE, cost) == pytest.approx(9 + 1.5)


def test_a_link_that_limits_is_never_idle_for_long():
    layers = _layers((0.1, 0.1, 100), (0.1, 0.1, 100), (0.1, 0.1, 100))
    seconds = iteration_seconds(layers, LAYERWISE, LAYERWISE, ServerCost(beta=0.01, startup=0.0))
    assert 6 <= seconds <= 6 + 6 * 0.1 + 1e-9


@given(st.lists(st.integers(0, 100), min_size=1, max_size=40))
def test_cuts_have_all_layers_and_parts_that_are_about_equal(sizes: list[int]) -> None:
    cuts = list(equal_cuts(sizes))
    assert len(cuts) == max(0, math.ceil(math.log2(len(sizes))) - 1)
    for number, batches in enumerate(cuts, start=1):
        most = 2**number
        assert [layer for first, last in batches for layer in range(first, last + 1)] == list(range(len(sizes)))
        assert len(batches) <= most
        for first, last in batches:
            assert sum(sizes[first:last]) <= sum(sizes) / most, "but for its last layer no batch has more than its part"


@pytest.mark.parametrize("batches", [[], [(0, 1)], [(0, 0), (2, 2)], [(1, 2), (0, 0)], [(0, 2), (2, 2)], [(0, 3)]])
def test_batches_that_are_not_all_layers_are_refused(batches):
    with pytest.raises(InputError, match="must be layers 0 to 2"):
        iteration_seconds(_layers(*[(1, 1, 1)] * 3), batches, WHOLE, ServerCost(1.0, 0.0))


def test_overhead_is_what_iterations_that_do_nothing_take():
    """As long as handling does not take longer than a whole iteration, which only chance makes it do."""
    nothing = _layers(*[(0, 0, 0)] * 8)
    overhead = Overhead.of_iterations(whole=0.008, layerwise=0.022, layers=8)
    assert overhead == Overhead(pytest.approx(0.003), pytest.approx(0.002))
    cost = ServerCost(beta=1e-9, startup=overhead.startup, handling=overhead.handling)
    whole, layerwise = (
        iteration_seconds(nothing, cut(8), cut(8), cost)
        for cut in (SIMPLE_BATCHINGS["whole"], SIMPLE_BATCHINGS["layerwise"])
    )
    assert (whole, layerwise) == (pytest.approx(0.008), pytest.approx(0.022))
    assert Overhead.of_iterations(whole=0.008, layerwise=0.007, layers=8) == Overhead(0.004, 0.0)
