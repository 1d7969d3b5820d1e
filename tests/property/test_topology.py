"""Addresses, segments and routes of topologies of all kinds."""

from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.topology import Topology
from tests.draws import examples

radices = st.lists(st.integers(2, 4), min_size=2, max_size=3).map(lambda r: "bcube:" + "x".join(map(str, r)))
texts = st.one_of(
    radices,
    st.integers(1, 12).map("star:{}".format),
    st.tuples(st.integers(2, 4), st.integers(1, 3)).map(lambda t: f"bcube:{t[0]},{t[1]}"),
    st.tuples(st.sampled_from([2, 4, 6]), st.floats(1, 8)).map(lambda t: f"fattree:{t[0]},oversub={t[1]!r}"),
    st.tuples(st.integers(1, 5), st.integers(1, 4)).map(lambda t: f"hosts:{t[0]}x{t[1]}"),
)
rates = st.sampled_from(["", ",1bit", ",200mbit", ",1.5gbit"])


@given(texts, rates)
def test_the_text_is_read_back(text, rate):
    topology = Topology.parse(text + rate)
    assert Topology.parse(str(topology)) == topology


@examples(50)
@given(texts)
def test_neighbours_share_a_segment_and_differ_in_one_digit(text):
    topology = Topology.parse(text)
    for host in topology.hosts:
        assert topology.host_at(topology.digits(host.index)) == host
        for rail in range(topology.rails):
            segment = topology.segment_of(host.index, rail)
            mates = [o.index for o in topology.hosts if topology.segment_of(o.index, rail) == segment]
            assert sorted((*topology.neighbor_hosts(host.index, rail), host.index)) == mates
            for rank in host.ranks:
                assert all(rank in topology.neighbors(other, rail) for other in topology.neighbors(rank, rail))


@given(texts)
def test_every_rank_has_one_host(text):
    topology = Topology.parse(text)
    assert [rank for host in topology.hosts for rank in host.ranks] == list(range(topology.world))
    assert all(rank in topology.host_of(rank).ranks for rank in range(topology.world))


@given(texts)
def test_relays_lead_to_every_segment_in_as_many_hops_as_digits_differ(text):
    topology = Topology.parse(text)
    for switch in topology.switches:
        for start in topology.hosts:
            here, hops = start.index, 0
            while (nic := topology.next_hop(here, switch.rail, switch.segment)) is not None:
                assert nic.host in topology.neighbor_hosts(here, nic.rail)
                here, hops = nic.host, hops + 1
                assert hops < topology.rails
            assert topology.segment_of(here, switch.rail) == switch.segment
