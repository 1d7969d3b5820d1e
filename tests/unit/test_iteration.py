"""What an iteration takes, against what can be said without a simulation."""

import math
from typing import Any

import pytest
from batching.iteration import iteration_seconds
from hypothesis import given
from hypothesis import strategies as st

times = st.floats(0.001, 1.0)


def plans(
    pull: list[list[int]], push: list[list[int]], transfer: list[float], compute: list[float], startup: float = 0.0
) -> dict[str, Any]:
    return {
        "pull": {"batches": pull, "profile": {"startup": startup, "transfer": transfer, "compute": compute}},
        "push": {
            "batches": push,
            "profile": {"startup": startup, "transfer": transfer, "compute": [2 * seconds for seconds in compute]},
        },
    }


@given(st.lists(st.tuples(times, times), min_size=1, max_size=6), times)
def test_one_batch_does_one_after_the_other(layers: list[tuple[float, float]], startup: float) -> None:
    transfer, compute = (list(column) for column in zip(*layers, strict=True))
    whole = [[1, len(layers)]]
    seconds = iteration_seconds(plans(whole, whole, transfer, compute, startup))
    assert seconds == pytest.approx(2 * sum(transfer) + 3 * sum(compute) + 2 * startup)


@given(st.lists(st.tuples(times, times), min_size=2, max_size=6), times, st.randoms(use_true_random=False))
def test_batches_take_no_longer_than_everything_in_turn_and_no_less_than_the_busiest(
    layers: list[tuple[float, float]], startup: float, random: Any
) -> None:
    transfer, compute = (list(column) for column in zip(*layers, strict=True))
    count = len(layers)
    ends = sorted({count, *(random.randrange(1, count + 1) for _ in range(random.randrange(count)))})
    cut = [[first + 1, last] for first, last in zip([0, *ends], ends, strict=False)]
    seconds = iteration_seconds(plans(cut, cut[::-1], transfer, compute, startup))
    computing, sending = 3 * sum(compute), 2 * sum(transfer)
    assert max(computing, sending) * 0.999 <= seconds <= (computing + sending + 2 * len(cut) * startup) * 1.001


def test_much_to_compute_in_front_and_much_to_send_behind() -> None:
    """The last layer's gradients travel in the second one's backward pass and its parameters in the first one's, so that
    nothing is waited for. More of them arrive during the first one's pass, and are updated after it."""
    layers, whole = [[1, 1], [2, 2], [3, 3]], [[1, 3]]
    compute = [0.5, 0.5, 0.0]
    assert iteration_seconds(plans(layers, layers[::-1], [0.0, 0.0, 0.9], compute)) == pytest.approx(3.0)
    assert iteration_seconds(plans(layers, layers[::-1], [0.0, 0.0, 1.2], compute)) == pytest.approx(3.2)
    assert iteration_seconds(plans(whole, whole, [0.0, 0.0, 0.9], compute)) == pytest.approx(4.8)


def test_start_ups_follow_one_another() -> None:
    seconds = iteration_seconds(plans([[1, 1], [2, 2]], [[2, 2], [1, 1]], [0.0, 0.0], [0.0, 0.0], 0.5))
    assert math.isclose(seconds, 2.0, rel_tol=0.01)
