"""What the driver finds out about a collective strategy before it starts ranks."""

import pytest

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.strategies.registry import strategy_class


def check(strategy, world, settings):
    conf = CommConf.from_mapping({}, strategy=strategy, **settings)
    strategy_class(conf).check(conf, world)


@pytest.mark.parametrize(
    ("strategy", "world", "settings", "complaint"),
    [
        ("bml", 3, {"topology": "bcube:2,2"}, "bcube:2,2 has 4 ranks, not 3; 3 fit star:3"),
        ("bml", 9, {"topology": "bcube:3,2"}, "bcube:3,2 has 2 rails, but spark.sparkdl.comm.rails names 1"),
        (
            "lp",
            3,
            {"topology": "star:3", "rails": ("eth1", "eth2")},
            "star:3 has 1 rails, but spark.sparkdl.comm.rails",
        ),
        ("mst", 9, {"topology": "bcube:3,2", "rails": ("eth1", "eth2")}, "mst cannot run on bcube:3,2"),
        ("bml", 8, {"topology": "hosts:4x2"}, "takes one rank per host"),
        (
            "ring",
            3,
            {"loop": "root"},
            "collective.loop=root: strategy ring does no broadcast, reduce; lp, mst, be.* do",
        ),
        (
            "auto",
            3,
            {"loop": "decoupled"},
            "collective.loop=decoupled: cheapest and auto may choose two .* such as ring",
        ),
        ("bml", 3, {"resync": 5}, "collective.resync=5: strategy bml does no broadcast; lp, mst, be.* do"),
    ],
)
def test_topologies_that_do_not_fit(strategy, world, settings, complaint):
    with pytest.raises(ConfError, match=complaint):
        check(strategy, world, settings)


@pytest.mark.parametrize(
    ("strategy", "world", "settings"),
    [
        ("bml", 3, {}),
        ("auto", 9, {"topology": "bcube:3,2", "rails": ("eth1", "eth2")}),
        ("hierarchical", 8, {"topology": "hosts:4x2"}),
        ("gloo", 3, {"topology": "bcube:2,2", "loop": "root"}),
        ("lp", 3, {"loop": "root-overlap"}),
        ("lp", 3, {"loop": "decoupled"}),
        ("bml", 9, {"loop": "decoupled", "topology": "bcube:3,2", "rails": ("eth1", "eth2")}),
        ("auto", 3, {"loop": "root"}),
        ("be", 3, {"resync": 5}),
    ],
)
def test_topologies_that_fit(strategy, world, settings):
    check(strategy, world, settings)
