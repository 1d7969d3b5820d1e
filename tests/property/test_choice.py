"""A choice among strategies under a virtual clock: it ends, with the fastest that was tried, and follows changes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.autotune import choice
from sparkdl_comm.autotune.choice import Choice

NAMES = "abcdef"
#: Seconds of a step of a candidate; the step counts from 1.
Seconds = Callable[[str, int], float]


def run(steps: int, seconds: Seconds, predicted: Seconds, names: str, settling: dict[str, int] | None = None):
    """The choice after so many steps, and with whom each of them was made."""
    chosen, used, step = Choice(names[0], settling), [], 1
    while len(used) < steps:
        turn, measured = chosen.turn, []
        for number in range(turn.settling + turn.steps):
            used.append(turn.candidate)
            took = seconds(turn.candidate, step)
            if number >= turn.settling:
                measured.append(took)
            step += 1
        if chosen.record_turn(measured, step):
            chosen.start_decision({name: predicted(name, step) for name in names}, step)
    return chosen, used


tables = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=len(NAMES))
wrong = st.lists(st.floats(0.5, 2.0), min_size=len(NAMES), max_size=len(NAMES))


@given(tables, wrong)
def test_it_stays_with_the_fastest_that_was_tried(table: list[float], errors: list[float]) -> None:
    names = NAMES[: len(table)]
    true = dict(zip(names, table, strict=True))
    chosen, used = run(200, lambda name, _: true[name], lambda name, _: true[name] * errors[names.index(name)], names)
    (decision,) = chosen.decisions
    tried = set(used)
    assert tried == set(decision.measured), "what was tried was measured"
    assert len(tried) <= 1 + choice.MAX_FIRST_TRIALS
    assert (1 - choice.MARGIN) * true[decision.chosen] <= min(true[name] for name in tried)
    assert set(used[25:]) == {decision.chosen}
    likely = true[names[0]] / decision.predicted[names[0]]
    near = (1 + choice.NEAR_FRACTION) * true[names[0]] * (1 + 1e-9)
    assert all(decision.predicted[name] * likely <= near for name in tried - {names[0]})


@given(tables, st.lists(st.floats(0.95, 1.05), min_size=len(NAMES), max_size=len(NAMES)))
def test_regret_with_predictions_that_are_about_right(table: list[float], errors: list[float]) -> None:
    names = NAMES[: len(table)]
    true = dict(zip(names, table, strict=True))
    _, used = run(500, lambda name, _: true[name], lambda name, _: true[name] * errors[names.index(name)], names)
    best = min(table)
    beginning = 5 * (true[names[0]] - best)  # by which computing is measured, whatever it takes
    lost = sum(true[name] - best for name in used) - beginning
    assert lost <= len(used) * best * (choice.MARGIN / (1 - choice.MARGIN) + 0.02)


@given(tables, st.integers(0, 3))
def test_one_that_is_far_behind_costs_two_steps(table: list[float], settling: int) -> None:
    names = NAMES[: len(table)]
    true = dict(zip(names, table, strict=True))
    extra = {names[-1]: settling} if len(names) > 1 else {}
    _, used = run(100, lambda name, _: true[name], lambda name, _: 1.0, names, extra)
    for name in set(used[5:]) - {names[0]}:
        if true[name] > 1.3 * true[names[0]]:
            assert used.count(name) == 1 + (settling if name in extra else choice.SETTLING_STEPS)


@given(
    tables,
    tables,
    st.integers(60, 100),
    st.floats(1.35, 4.0),
    st.booleans(),
    st.integers(1, choice.MAX_QUICK_SETTLING_STEPS),
)
def test_a_change_is_answered_within_twenty_steps(
    before: list[float], after: list[float], change: int, factor: float, faster: bool, settling: int
) -> None:
    names = NAMES[: min(len(before), len(after))]
    then = dict(zip(names, before[: len(names)], strict=True))
    settles = dict.fromkeys(names, settling)
    chosen, used = run(59, lambda name, _: then[name], lambda name, _: then[name], names, settles)
    held = used[-1]
    now = dict(zip(names, after[: len(names)], strict=True))
    now[held] = then[held] / factor if faster else then[held] * factor

    def seconds(name: str, step: int) -> float:
        return (now if step >= change else then)[name]

    chosen, used = run(400, seconds, seconds, names, settles)
    assert len(chosen.decisions) == 2
    settled = chosen.decisions[1].since
    assert settled is not None
    assert change < settled <= change + 20
    assert set(used[settled - 1 :]) == {chosen.decisions[1].chosen}
    assert (1 - choice.MARGIN) * now[used[-1]] <= min(now[name] for name in chosen.decisions[1].measured)
    if len(names) <= 2:
        assert (1 - choice.MARGIN) * now[used[-1]] <= min(now.values()) * (1 + 1e-9)


@given(st.lists(st.floats(1.0, 3.0), min_size=10, max_size=60), st.integers(2, 4))
def test_noise_without_end_is_answered_less_and_less_often(noise: list[float], count: int) -> None:
    names = NAMES[:count]

    def seconds(name: str, step: int) -> float:
        return noise[step * 7919 % len(noise)] * (1 + 0.01 * names.index(name))

    chosen, used = run(3000, seconds, lambda name, _: 1.0, names)
    largest = 3.0 * 1.04 - 1
    at_once = math.ceil(math.log(largest / choice.DRIFT_LIMIT) / math.log(choice.LIMIT_GROWTH)) + 1
    narrowings = 3000 / choice.WINDOW_STEPS / choice.CALM_WINDOWS
    assert len(chosen.decisions) <= 1 + at_once + narrowings
    for decision in chosen.decisions[:-1]:
        assert decision.chosen is not None


def test_candidates_that_settle_slowly_are_tried_when_a_change_has_been_answered() -> None:
    def seconds(name: str, step: int) -> float:
        before, after = {"a": (1.0, 2.0), "b": (0.99, 1.5), "c": (1.1, 1.6)}[name]
        return after if step > 80 else before

    chosen, used = run(200, seconds, seconds, "abc", {"b": 10})
    assert [decision.chosen for decision in chosen.decisions] == ["a", "c", "b"]
    first, answered, afforded = chosen.decisions
    assert first.measured.keys() == {"a", "b", "c"}
    assert "steps of a took 2 s in place of 1 s" in answered.why
    assert answered.measured.keys() == {"a", "c"}
    assert answered.since is not None
    assert 80 < answered.since <= 100
    assert afforded.why == "trying b takes long, and can be afforded now"
    assert afforded.step == answered.since + choice.WINDOW_STEPS
    assert set(used[afforded.step :]) == {"b"}


def test_one_that_settles_slowly_is_not_tried_if_it_promises_nothing() -> None:
    def seconds(name: str, step: int) -> float:
        return 2.0 if step > 80 else 1.0

    chosen, used = run(200, seconds, seconds, "ab", {"b": 10})
    assert len(chosen.decisions) == 2
    assert "b" not in used


@pytest.mark.parametrize(("predicted", "true", "tried"), [(0.9, 1.0, [1]), (0.95, 0.9, []), (0.95, 1.0, [2])])
def test_one_that_settles_slowly_is_tried_last_and_what_a_quick_one_promises_first(
    predicted: float, true: float, tried: list[int]
) -> None:
    """By the quick one; if that has kept its promise, nothing is gained. ``tried``: in which decisions."""
    promised = {"a": 1.0, "b": predicted, "c": 0.95}
    actual = {"a": 1.0, "b": 1.0, "c": true}
    chosen, used = run(60, lambda name, _: actual[name], lambda name, _: promised[name], "abc", {"b": 4})
    assert "c" in used
    assert [number for number, decision in enumerate(chosen.decisions, 1) if "b" in decision.measured] == tried
    if tried:
        assert used.index("c") < used.index("b")
        assert used.count("b") == 4 + choice.TRIAL_STEPS + choice.EXTRA_STEPS
