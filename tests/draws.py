"""Draws of hypothesis: a few fixed ones, or many random ones. :mod:`tests.seeds` says which."""

from __future__ import annotations

from hypothesis import HealthCheck, core, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests import seeds

_FIXED_EXAMPLES, _RANDOM_EXAMPLES = 40, 1000

_ALWAYS = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", _ALWAYS, max_examples=_FIXED_EXAMPLES, derandomize=True)
settings.register_profile("random", _ALWAYS, max_examples=_RANDOM_EXAMPLES, derandomize=False)


def examples(few: int, many: int | None = None) -> settings:
    """Return settings for ``few`` fixed draws, or ``many`` random ones: by default ten times as many."""
    return settings(max_examples=(many or 10 * few) if seeds.of_run() else few)


def load_profile() -> None:
    """Load the profile of this run, before tests are collected."""
    settings.load_profile("random" if seeds.of_run() else "fixed")
    if seeds.of_run():
        core.global_force_seed = seeds.first()
    else:
        # Hypothesis draws constants of the modules that are loaded, which depends on the tests before.
        providers._get_local_constants = Constants


load_profile()
