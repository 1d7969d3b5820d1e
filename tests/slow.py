"""Cases of a parametrized test that `make test` leaves out, because a quicker case of their kind stays."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

#: A parameter set that only `make test-all` runs.
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def slow_unless(is_quick: Callable[[Any], bool], values: Iterable[Any]) -> list[Any]:
    """Return a parameter set for each value. Those for which ``is_quick`` is false are slow."""
    return [pytest.param(value) if is_quick(value) else slow(value) for value in values]


def crossed(*values: Iterable[Any], quick: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return a parameter set for each combination of ``values``. All but those in ``quick`` are slow."""
    kept = list(quick)
    return [pytest.param(*case) if case in kept else slow(*case) for case in itertools.product(*values)]
