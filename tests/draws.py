"""Draws of hypothesis: fixed ones, or random ones and ten times as many. :mod:`tests.seeds` says which."""

from __future__ import annotations

from hypothesis import HealthCheck, core, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests import seeds

_FIXED_EXAMPLES, _RANDOM_EXAMPLES = 100, 1000

_ALWAYS = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", _ALWAYS, max_examples=_FIXED_EXAMPLES, derandomize=True)
settings.register_profile("random", _ALWAYS, max_examples=_RANDOM_EXAMPLES, derandomize=False)


def examples(count: int) -> settings:
    """Return settings for ``count`` fixed draws, or ten times as many random ones."""
    return settings(max_examples=count * settings.default.max_examples // _FIXED_EXAMPLES)


def load_profile() -> None:
    """Load the profile of this run, before tests are collected."""
    settings.load_profile("random" if seeds.of_run() else "fixed")
    if seeds.of_run():
        core.global_force_seed = seeds.first()
    else:
        # Hypothesis draws constants of the modules that are loaded, which depends on the tests before.
        providers._get_local_constants = Constants


load_profile()
