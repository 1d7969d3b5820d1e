"""How fast the fabric is taken to go on, beside bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.sim.fabric_pace import seconds_per_round
from tests.draws import examples

workers = st.lists(st.floats(0.05, 1.0), min_size=1, max_size=6)


@examples(40)
@given(workers)
def test_without_a_network_each_worker_goes_at_its_own_pace(computing: list[float]) -> None:
    found = seconds_per_round(computing, len(computing), 4, 1e12, "async:1000", 0.01)
    mine = len(computing) / math.fsum(1 / seconds for seconds in computing)
    # The run begins with all at once, and ends after ten rounds: of each worker a few updates, cut at either end.
    assert found == pytest.approx(mine, rel=0.15)
    assert found <= max(computing) * (1 + 1e-6) + 1e-3


@examples(40)
@given(workers, st.integers(1, 1 << 24))
def test_in_step_it_waits_for_the_slowest(computing: list[float], nbytes: int) -> None:
    found = seconds_per_round(computing, len(computing), nbytes, 1e9, "bsp", 0.01)
    assert found >= max(computing) * (1 - 1e-9)


@examples(40)
@given(workers, st.integers(1, 1 << 24), st.floats(1.0, 4.0))
def test_the_network_only_adds(computing: list[float], nbytes: int, factor: float) -> None:
    """An update's way out, and the model's way back, of each worker."""
    world = len(computing)
    found = seconds_per_round(computing, world, nbytes, 1e9, "async:1000", 0.01)
    each = [seconds + 2 * nbytes / 1e9 for seconds in computing]
    assert found >= 0.85 * world / math.fsum(1 / seconds for seconds in each)


def test_a_slow_rank_costs_a_step_but_not_a_round() -> None:
    even, lame = ([0.1, *[0.1] * 7], [1.0, *[0.1] * 7])
    fast, slow = (seconds_per_round(each, 8, 1000, 1e9, "async:30", 0.1) for each in (even, lame))
    assert fast == pytest.approx(0.1, rel=0.05)
    assert slow == pytest.approx(8 / (7 / 0.1 + 1), rel=0.1)
    assert seconds_per_round(lame, 8, 1000, 1e9, "ssp:2", 0.1) > 0.9


def test_updates_that_come_too_late_are_no_round() -> None:
    """With 8 workers and a bound of 1, an update that another has overtaken is dropped."""
    assert seconds_per_round([0.1] * 8, 8, 1000, 1e9, "async:1", 0.1) > 0.2
