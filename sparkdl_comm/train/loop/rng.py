"""Random generators that a rank's training may draw from: python's, numpy's, and torch's on CPU and GPU."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed(value: int, rank: int, *more: int) -> None:
    """Seed all generators, so that ranks draw different numbers (dropout), but equal ones in every run.

    :param more: further numbers to vary the seed, at least 0.
    """
    numbers = np.random.SeedSequence([value % 2**64, rank, *more]).generate_state(3, np.uint32)
    random.seed(int(numbers[0]))
    np.random.seed(int(numbers[1]))
    torch.manual_seed(int(numbers[2]))


def state(device: torch.device) -> dict[str, Any]:
    """Return the state of all generators: numbers, strings, lists of these, and uint8 tensors."""
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=True)
    kind, keys, position, has_gauss, cached = legacy
    saved: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [kind, keys.tolist(), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        saved["cuda"] = torch.cuda.get_rng_state(device)
    return saved


def load_state(saved: dict[str, Any], device: torch.device) -> None:
    """Restore what :func:`state` returned."""
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = saved["numpy"]
    np.random.set_state((kind, np.asarray(keys, np.uint32), *rest))
    torch.set_rng_state(saved["torch"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(saved["cuda"], device)
