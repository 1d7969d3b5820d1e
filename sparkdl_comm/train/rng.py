"""Random generators that a rank's training may draw from: python's, numpy's, and torch's on CPU and GPU.

The user's ``augment`` draws from them. It changes a batch's inputs in every epoch, after the rows were read and cached.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sparkdl_comm.data.cache import Batch
from sparkdl_comm.errors import ModelError


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


class Augmentation:
    """Caller of ``augment`` for the inputs of a rank's training batches.

    What ``augment`` draws from the generators of python, numpy and torch depends only on the seed, the rank and the
    step. Other random draws are not affected.
    """

    def __init__(self, augment: Callable[..., Any], seed: int, rank: int, device: torch.device) -> None:
        self._augment, self._seed, self._rank, self._device = augment, seed, rank, device

    def __call__(self, batch: Batch, epoch: int, step: int, part: int) -> Batch:
        """Return the batch with augmented inputs.

        :param step: number of the step in the epoch.
        :param part: number of the part within the step, if a step is computed in several parts.
        :raises ModelError: ``augment`` raised, or returned something that cannot replace these inputs.
        """
        if not batch.rows:
            return batch
        saved_state = state(self._device)
        seed(self._seed, self._rank, epoch, step, part)
        try:
            result = self._augment(*batch.inputs)
        except Exception as error:  # whatever the user's function raises
            raise ModelError(f"augment raised {type(error).__name__} for {batch.rows} rows: {error}") from error
        finally:
            load_state(saved_state, self._device)
        return replace(batch, inputs=_check_inputs(result, batch))


def _check_inputs(result: Any, batch: Batch) -> tuple[Any, ...]:
    inputs = (result,) if len(batch.inputs) == 1 else result
    if not isinstance(inputs, tuple) or len(inputs) != len(batch.inputs):
        raise ModelError(
            f"augment returned {type(result).__name__}. With {len(batch.inputs)} feature columns it must return a tuple of as"
            " many inputs."
        )
    for new, old in zip(inputs, batch.inputs, strict=True):
        if not isinstance(old, torch.Tensor):
            continue  # made by collate_fn
        if not isinstance(new, torch.Tensor):
            raise ModelError(
                f"augment returned {type(new).__name__} for a tensor of shape {list(old.shape)}. Return a tensor."
            )
        if new.shape[:1] != old.shape[:1]:
            raise ModelError(f"augment returned shape {list(new.shape)} for {len(old)} rows. Return one row for each.")
    return inputs
