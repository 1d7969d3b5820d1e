"""Seeds of what tests draw: the same in every `make test`, new ones in every `make test-all`.

``SPARKDL_TEST_SEED`` chooses: unset or 0 for the fixed ones, ``random`` for new ones, or the number that a run has printed.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Sequence

import numpy as np
import torch

VARIABLE = "SPARKDL_TEST_SEED"
#: The seeds of two runs are in ranges of this length.
STRIDE = 100_000


def of_run() -> int:
    """Return the number of this run, which is 0 with fixed seeds.

    A new number is put into the environment, where pytest-xdist's processes find it.
    """
    if os.environ.get(VARIABLE) == "random":
        os.environ[VARIABLE] = str(1 + secrets.randbelow(STRIDE))
    return int(os.environ.get(VARIABLE) or 0)


def first() -> int:
    """Return the first seed of this run."""
    return STRIDE * of_run()


def seeds(count: int) -> Sequence[int]:
    """Return the first seeds of this run."""
    return range(first(), first() + count)


def seed_generators() -> None:
    """Seed the global generators of Python, numpy and torch."""
    random.seed(first())
    np.random.seed(first() % 2**32)
    torch.manual_seed(first())


def header() -> str:
    """Return a line for the head of pytest's report."""
    if not of_run():
        return "draws: fixed"
    return f"draws: random; {VARIABLE}={of_run()} draws the same again"
