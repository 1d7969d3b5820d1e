"""How tensors are dealt out over ranks, for each to compute its part (PTO)."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.optim.parallel import _layout, deal

LOADS = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 10**9)), max_size=40)


def sums(loads, owners, world):
    return [sum(load for load, owner in zip(loads, owners, strict=True) if owner == rank) for rank in range(world)]


@given(LOADS, st.integers(1, 9))
def test_everything_is_dealt_once_and_evenly(loads, world):
    owners = deal(loads, world)
    assert len(owners) == len(loads)
    assert set(owners) <= set(range(world))
    largest = max(sums(loads, owners, world))
    # Whoever has most got its last thing when it had least: no more than the mean of the others' and itself then.
    assert largest * world <= sum(loads) + (world - 1) * max(loads, default=0)
    if len(loads) <= world:
        assert largest == max(loads, default=0)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=7), st.integers(1, 3))
def test_the_largest_load_is_near_the_least_possible(loads, world):
    least = min(max(sums(loads, owners, world)) for owners in itertools.product(range(world), repeat=len(loads)))
    largest = max(sums(loads, deal(loads, world), world))
    assert 3 * world * largest <= (4 * world - 1) * least


@given(LOADS.filter(len), st.integers(1, 9))
def test_each_has_a_row_of_its_own(loads, world):
    owners, most, places = _layout(tuple(loads), world)
    assert len(set(places.tolist())) == len(loads)
    for owner, place in zip(owners, places.tolist(), strict=True):
        assert place // most == owner
    assert most == max(owners.count(rank) for rank in range(world))
    assert math.ceil(len(loads) / world) <= most
