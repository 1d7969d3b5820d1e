"""Rates that are redrawn: seeded, each direction on its own, and as frequent as the MLfabric paper says."""

from collections import Counter

import pytest
from lab.rates import RateSchedule

from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology

NOMINAL = 10**8
STAR = Topology.parse("star:20,100mbit")
STEPS = 100


@pytest.mark.parametrize(
    ("name", "chances"),
    [
        ("N1", {0.5: 0.1, 1.0: 0.9}),
        ("N2", {0.25: 0.1, 0.33: 0.1, 0.5: 0.1, 1.0: 0.7}),
        ("N3", {0.1: 0.5, 1.0: 0.5}),
    ],
)
def test_shares_are_as_frequent_as_stated(name: str, chances: dict[float, float]) -> None:
    schedule = RateSchedule.named(name, seed=3)
    links = [link for step in range(STEPS) for link in schedule.draw(step, STAR).values()]
    for drawn in (Counter(link.up for link in links), Counter(link.down for link in links)):
        assert drawn.keys() == {round(share * NOMINAL) for share in chances}
        for share, chance in chances.items():
            assert drawn[round(share * NOMINAL)] / len(links) == pytest.approx(chance, abs=0.04)
    assert any(link.up != link.down for link in links)


def test_the_seed_and_the_step_decide() -> None:
    schedule = RateSchedule.named("N3", seed=3)
    assert schedule.draw(7, STAR) == RateSchedule.named("N3", seed=3, period=1.0).draw(7, STAR)
    assert schedule.draw(7, STAR) != schedule.draw(8, STAR)
    assert schedule.draw(7, STAR) != RateSchedule.named("N3", seed=4).draw(7, STAR)


def test_each_rail_has_shares_of_its_own_rate() -> None:
    drawn = RateSchedule({0.5: 1.0}).draw(0, Topology.parse("bcube:2,2,100mbit/20mbit"))
    assert {(rail, link.up, link.down) for (_, rail), link in drawn.items()} == {
        (0, 50_000_000, 50_000_000),
        (1, 10_000_000, 10_000_000),
    }


@pytest.mark.parametrize("shares", [{}, {0.5: 0.4}, {0.0: 1.0}])
def test_chances_must_sum_up_to_one(shares: dict[float, float]) -> None:
    with pytest.raises(ConfError, match="sum up to 1"):
        RateSchedule(shares)


def test_unknown_names_and_periods_are_refused() -> None:
    with pytest.raises(ConfError, match="there are N1, N2, N3"):
        RateSchedule.named("N4")
    with pytest.raises(ConfError, match="period=0"):
        RateSchedule.named("N1", period=0)
