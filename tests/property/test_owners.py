"""Which rank owns which bucket, and that pipelines of successive buckets then keep every link busy."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.plan import Collective, Kind
from sparkdl_comm.strategies.owners import in_turns
from sparkdl_comm.topology import Topology

SIZES = st.lists(st.one_of(st.integers(1, 9), st.integers(1, 10**9)), max_size=60)
TURNS = st.integers(1, 9).flatmap(lambda world: st.permutations(range(world)))


@settings(deadline=None)
@given(SIZES, TURNS)
def test_what_ranks_own_differs_by_one_bucket_at_most(sizes, turn):
    owners = in_turns(sizes, turn)
    assert len(owners) == len(sizes)
    owned = dict.fromkeys(turn, 0)
    for done, (size, owner) in enumerate(zip(sizes, owners, strict=True), 1):
        owned[owner] += size  # KeyError if it is no rank
        assert max(owned.values()) - min(owned.values()) <= max(sizes), f"after {done} buckets"


@settings(deadline=None)
@given(SIZES.filter(len), TURNS.filter(lambda turn: len(turn) > 1))
def test_an_owner_is_the_next_in_turn_but_for_those_that_have_too_much(sizes, turn):
    owners = in_turns(sizes, turn)
    owned, before = Counter(), turn[-1]
    for size, owner in zip(sizes, owners, strict=True):
        at = turn.index(before) + 1
        nexts = [*turn[at:], *turn[:at]]
        assert nexts[-1] == before
        least = min(owned[rank] for rank in turn)
        assert all(owned[rank] + size > least + max(sizes) for rank in nexts[: nexts.index(owner)])
        if owner == before:  # none of the others would have been fair
            assert all(owned[rank] > least for rank in turn if rank != owner)
        owned[owner] += size
        before = owner


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 10**9), TURNS)
def test_buckets_of_one_size_are_owned_in_turn(count, size, turn):
    assert in_turns([size] * count, turn) == list(itertools.islice(itertools.cycle(turn), count))


def turns_needed(operation, owners, topology):
    """How long buckets of one size take, in times that a link needs for one, if each begins to pass a link when it begins to
    arrive there, and every link takes them in their order."""
    links, end = Counter(), 0
    for owner in owners:
        plan = make_plan("lp", Collective(operation, topology, 100, root=owner))
        to = {}
        for rank in range(topology.world):
            for step in plan.program(rank).steps:
                if step.kind is Kind.SEND:
                    to[rank] = step.peer
        [rank] = to.keys() - set(to.values())
        begins = 0
        while rank in to:
            begins = max(begins, links[rank])
            links[rank] = begins + 1
            end = max(end, begins + 1)
            rank = to[rank]
    return end


@pytest.mark.parametrize("text", ["star:2", "star:3", "star:5", "star:8", "bcube:3,2"])
def test_linear_pipelines_to_owners_in_turn_follow_each_other_without_gaps(text):
    topology = Topology.parse(text)
    world, rounds = topology.world, 6
    owners = in_turns([1] * (world * rounds), topology.cycle()[::-1])
    # Each link carries all buckets but those that end before it.
    fewest = (world - 1) * rounds
    assert turns_needed("reduce", owners, topology) == fewest
    # Parameters are broadcast in the other order: forward wants the bucket that was reduced last first.
    assert turns_needed("broadcast", owners[::-1], topology) == fewest
    if world > 2:
        assert turns_needed("reduce", owners[::-1], topology) == turns_needed("broadcast", owners, topology) > fewest
