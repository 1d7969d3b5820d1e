"""Where ranks are, from the networks of their NICs."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.collectives.discover import arrange, list_shapes
from sparkdl_comm.errors import ConfError
from sparkdl_comm.gang.members import Member, Rail
from sparkdl_comm.topology import Topology
from tests.draws import examples


def members(addresses: list[list[tuple[str, str]]]) -> list[Member]:
    """Members with these (address, network) on each rail."""
    return [
        Member(rank, "10.0.0.1", {}, 1, tuple(Rail(address, network, 1) for address, network in rails), {})
        for rank, rails in enumerate(addresses)
    ]


def cabled(text: str, hosts: list[int]) -> list[Member]:
    """Rank r on host ``hosts[r]`` of the topology, with a network per segment."""
    topology = Topology.parse(text)
    return members(
        [
            [(f"10.{rail}.{segment}.{host}", f"10.{rail}.{segment}.0/24") for rail, segment in enumerate(segments)]
            for host in hosts
            for segments in [[topology.segment_of(host, rail) for rail in range(topology.rails)]]
        ]
    )


def two_subnets(hosts: list[int]) -> list[Member]:
    """Rank r on host ``hosts[r]``, with one network per rail."""
    return members([[(f"10.{rail}.0.{host}", f"10.{rail}.0.0/24") for rail in (0, 1)] for host in hosts])


@examples(40)
@given(st.sampled_from(["bcube:2,2", "bcube:3,2", "bcube:2x3", "bcube:2,3", "bcube:2x3x2", "bcube:4x2"]), st.randoms())
def test_a_bcube_is_found_wherever_its_ranks_are(text, source: random.Random):
    topology = Topology.parse(text)
    hosts = list(range(topology.world))
    source.shuffle(hosts)
    there = cabled(text, hosts)
    found, order = arrange(there)
    assert (found.radices, sorted(order)) == (topology.radices, sorted(hosts))
    for place in range(found.world):
        for rail in range(found.rails):
            for neighbour in found.neighbors(place, rail):
                networks = [there[order[p]].rails[rail].network for p in (place, neighbour)]
                assert networks[0] == networks[1]
    assert arrange(there, text)[1] == order


def test_one_nic_each_is_a_star():
    there = members([[(f"10.0.0.{rank}", "10.0.0.0/24")] for rank in range(4)])
    assert arrange(there)[0].text == "star:4"
    assert arrange(there, "star:4,10gbit")[0].rates == (10**10,)


def test_ranks_of_a_host_stand_together():
    there = members([[(f"10.0.0.{host}", "10.0.0.0/24")] for host in (7, 9, 7, 9, 9, 7)])
    found, order = arrange(there)
    assert (found.text, order) == ("hosts:2x3", [0, 2, 5, 1, 3, 4])


def test_unequal_hosts_and_one_host_alone_are_a_star():
    assert arrange(members([[(f"10.0.0.{host}", "10.0.0.0/24")] for host in (7, 9, 7)]))[0].text == "star:3"
    assert arrange(members([[("127.0.0.1", "127.0.0.0/8")]] * 3))[0].text == "star:3"


def test_one_network_for_all_needs_the_topology_from_the_user():
    """As on loopback: every address is reached from everywhere, and ranks are in their order."""
    there = members([[(f"127.{rail}.0.{rank}", "127.0.0.0/8") for rail in (1, 2)] for rank in range(6)])
    assert arrange(there, "bcube:2x3") == (Topology.parse("bcube:2x3"), list(range(6)))
    with pytest.raises(ConfError, match=r"form no BCube .*Set spark.sparkdl.comm.topology to a shape.*bcube:2x3"):
        arrange(there)


def test_ranks_of_one_loopback_address_emulate_hosts():
    there = members([[("127.0.0.1", "127.0.0.0/8")] * 2] * 4)
    assert arrange(there, "bcube:2,2") == (Topology.parse("bcube:2,2"), list(range(4)))


@pytest.mark.parametrize(
    ("there", "text", "complaint"),
    [
        (cabled("star:5", [0, 1, 2, 3, 4]), "bcube:3,2", "has 9 ranks, not 5; 5 fit star:5"),
        (cabled("star:9", list(range(9))), "bcube:3,2", "has 2 rails, but spark.sparkdl.comm.rails names 1"),
        (cabled("bcube:2x3", list(range(6))), "bcube:3x2", "but the rails' networks form a BCube of 2x3 hosts"),
        (cabled("bcube:3,2", [0, 1, 2, 3, 4, 5, 6, 7]), "", "8 ranks form no BCube"),
        (
            members([[("10.0.0.1", "10.0.0.0/24")] * rails for rails in (2, 2, 1)]),
            "",
            "ranks [2] do not have the 2 rails",
        ),
        (two_subnets([1, 2, 1, 2]), "bcube:2,2", "bcube:2,2, but ranks [0, 2] are on one host, 10.0.0.1. A host of"),
        (cabled("bcube:2,2", [0, 1, 1, 3]), "bcube:2,2", "bcube:2,2, but ranks [1, 2] are on one host, 10.0.0.1."),
        (two_subnets([1, 2, 3, 3]), "", "rails names 2 NICs, but ranks [2, 3] are on one host, 10.0.0.3."),
    ],
)
def test_networks_that_do_not_fit(there, text, complaint):
    with pytest.raises(ConfError) as error:
        arrange(there, text)
    assert complaint in str(error.value)


def test_shapes():
    assert list_shapes(9) == ["bcube:3,2"]
    assert list_shapes(16) == ["bcube:4,2", "bcube:2,4", "bcube:2x8"]
    assert list_shapes(7) == []
