"""Where benchmarks say that the time of an iteration goes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from peers.breakdown import PARTS, mean, of_iteration


def span(name: str, begin: float, end: float) -> dict[str, Any]:
    return {"name": name, "begin": begin, "end": end}


def test_what_backward_hides_does_not_count() -> None:
    spans = [
        span("forward", 0, 2),
        span("backward", 2, 6),
        span("compress", 3, 4),
        span("compress", 5.5, 7),
        span("wait for push", 6, 10),
        span("compress", 9, 9.5),
        span("update", 10, 11),
    ]
    assert of_iteration(spans) == {"computing": 6, "compression": 1.5, "communication": 2.5, "update": 1}


def test_what_forward_waits_for_and_what_backward_updates_is_no_computing() -> None:
    spans = [
        span("wait for pull", 1, 2),
        span("forward", 0, 4),
        span("update", 5, 6),
        span("backward", 4, 9),
        span("wait for push", 9, 10),
        span("update", 10, 12),
    ]
    assert of_iteration(spans) == {"computing": 7, "compression": 0, "communication": 2, "update": 3}


@given(st.lists(st.integers(1, 100), min_size=9, max_size=9))
def test_parts_add_up_to_the_iteration(lengths: list[int]) -> None:
    """Whatever is hidden: of spans that the worker has one after the other, with compression across their bounds."""
    ends = [sum(lengths[: number + 1]) for number in range(4)]
    names = ("forward", "backward", "wait for push", "update")
    spans = [span(name, begin, end) for name, begin, end in zip(names, [0, *ends[:-1]], ends, strict=True)]
    compressing = [sum(lengths[4 : 5 + number]) for number in range(4)]
    spans += [span("compress", *compressing[:2]), span("compress", *compressing[2:])]
    parts = of_iteration(spans)
    assert sum(parts.values()) == ends[-1]
    assert min(parts.values()) >= 0


def test_the_mean_is_of_each_part() -> None:
    assert mean([dict.fromkeys(PARTS, 1.0), dict.fromkeys(PARTS, 2.0)]) == dict.fromkeys(PARTS, 1.5)
