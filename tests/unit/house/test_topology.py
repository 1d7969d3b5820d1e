import pytest

from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology
from sparkdl_comm.units import format_rate, parse_rate, parse_size


def test_star_has_one_switch_and_everybody_is_a_neighbour():
    star = Topology.parse("star:4")
    assert (star.world, star.rails, len(star.switches)) == (4, 1, 1)
    assert star.neighbors(2, 0) == (0, 1, 3)


def test_bcube_3_2_is_that_of_the_paper():
    cube = Topology.parse("bcube:3,2")
    assert (len(cube.hosts), cube.rails, len(cube.switches)) == (9, 2, 6)
    assert cube.digits(5) == (2, 1)
    assert cube.neighbors(0, 0) == (1, 2)  # [0,1] and [0,2] over level 0
    assert cube.neighbors(0, 1) == (3, 6)  # [1,0] and [2,0] over level 1


def test_mixed_radix_names_level_0_first():
    cube = Topology.parse("bcube:2x3")
    assert (len(cube.hosts), cube.radices) == (6, (2, 3))
    assert cube.neighbors(0, 0) == (1,)
    assert cube.neighbors(0, 1) == (2, 4)


def test_fat_tree_trunks_carry_what_their_parallel_links_would():
    tree = Topology.parse("fattree:4,oversub=2")
    assert len(tree.hosts) == 16
    assert [trunk.factor for trunk in tree.trunks] == [1.0] * 8 + [2.0] * 4
    assert tree.neighbors(0, 0) == tuple(range(1, 16))


def test_ranks_of_one_host_are_local_and_not_neighbours():
    topology = Topology.parse("hosts:4x2")
    assert topology.world == 8
    assert topology.local_ranks(3) == (2,)
    assert topology.neighbors(3, 0) == (0, 1, 4, 5, 6, 7)


def test_rates_follow_the_topology():
    assert Topology.parse("star:3,200mbit").rates == (200_000_000,)
    assert Topology.parse("bcube:3,2,200mbit/100mbit").rates == (200_000_000, 100_000_000)
    assert Topology.parse("bcube:3,2,1gbit").rates == (10**9, 10**9)
    assert format_rate(parse_rate("1.5gbit")) == "1500mbit"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ring:3", "unknown kind 'ring'; known: star:N, bcube:n,k"),
        ("star:0", "from 1 to 65536, not '0'"),
        ("star:x", "not 'x'"),
        ("star:3,3", "not 2 values"),
        ("bcube:1,2", "from 2 to 65536"),
        ("bcube:3,99", "more than 65536 hosts"),
        ("bcube:300x300", "has 90000 ranks"),
        ("fattree:3", "k must be even"),
        ("fattree:4,oversub=0.5", "oversub must be from 1"),
        ("fattree:4,oversub=", "could not convert"),
        ("fattree:4,speed=2", "unknown option speed"),
        ("hosts:4", "needs MxS"),
        ("star:3,0mbit", "rate '0mbit'"),
        ("bcube:3,2,1mbit/2mbit/3mbit", "one rate for all or one each, not 3"),
    ],
)
def test_bad_texts_are_refused(text, complaint):
    with pytest.raises(ConfError) as error:
        Topology.parse(text)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64MiB", 64 << 20), ("100MB", 100_000_000), ("1.5kB", 1500), ("2 gb", 2 * 10**9), ("3KiB", 3072), ("12", 12)],
)
def test_sizes(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["100Mb/s", "MB", "1", "10TB"])
def test_sizes_that_are_none(text):
    with pytest.raises(ConfError, match="kB, MB or GB"):
        parse_size(text)
