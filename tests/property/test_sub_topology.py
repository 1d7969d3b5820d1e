"""The topology of a part of the ranks: hosts, rails and rates are those that the ranks have in the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.collectives.discover import sub_topology
from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology


@st.composite
def cubes(draw):
    """A BCube, and the ranks of a smaller one in it."""
    radices = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    text = "bcube:" + "x".join(map(str, radices)) if len(radices) > 1 else f"star:{radices[0]}"
    topology = Topology.parse(text).with_rates(*range(1, len(radices) + 1))
    kept = [draw(st.sets(st.integers(0, radix - 1), min_size=1)) for radix in radices]
    inside = [
        h.index for h in topology.hosts if all(d in k for d, k in zip(topology.digits(h.index), kept, strict=True))
    ]
    return topology, draw(st.permutations(inside))


@given(cubes())
def test_a_smaller_cube_keeps_its_rails(drawn):
    whole, ranks = drawn
    part, order, rails = sub_topology(whole, ranks)
    assert sorted(order) == list(range(part.world)) == list(range(len(ranks)))
    assert part.rates == tuple(whole.rates[rail] for rail in rails)
    there = [ranks[index] for index in order]
    for place in range(part.world):
        for rail in range(part.rails):
            neighbours = {there[other] for other in part.neighbors(place, rail)}
            assert neighbours == set(whole.neighbors(there[place], rails[rail])) & set(ranks)


@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_ranks_of_a_host_stay_together(hosts, slots, data):
    whole = Topology.parse(f"hosts:{hosts}x{slots},1gbit")
    kept = data.draw(st.sets(st.integers(0, hosts - 1), min_size=1))
    ranks = []
    each = data.draw(st.integers(1, slots))
    for host in kept:
        ranks += data.draw(st.permutations(whole.hosts[host].ranks))[:each]
    ranks = data.draw(st.permutations(ranks))
    part, order, rails = sub_topology(whole, ranks)
    assert (part.world, part.ranks_per_host, len(part.hosts), rails) == (len(ranks), each, len(kept), (0,))
    assert part.rates == whole.rates
    for place, index in enumerate(order):
        local = {ranks[order[other]] for other in part.local_ranks(place)}
        assert local == set(whole.local_ranks(ranks[index])) & set(ranks)


def test_all_ranks_in_another_order_are_the_same_topology():
    whole = Topology.parse("fattree:4")
    ranks = list(reversed(range(16)))
    assert sub_topology(whole, ranks) == (whole, ranks, (0,))


def test_unequal_hosts_count_as_hosts_of_one_rank():
    assert sub_topology(Topology.parse("hosts:2x2,1gbit"), [3, 0, 1]) == (
        Topology.parse("star:3,1gbit"),
        [1, 2, 0],
        (0,),
    )


def test_hosts_without_a_switch_in_common():
    with pytest.raises(
        ConfError, match=r"ranks \[0, 4\] of bcube:3,2 are on hosts \[0, 4\].* such as all of \[0, 1, 3, 4\]"
    ):
        sub_topology(Topology.parse("bcube:3,2"), [4, 0])
