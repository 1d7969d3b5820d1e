"""Augmentation: the user's ``augment`` changes a batch's inputs in every epoch, after the rows were read and cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from sparkdl_comm.data.cache import Batch
from sparkdl_comm.errors import ModelError
from sparkdl_comm.train.loop import rng


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
        saved_state = rng.state(self._device)
        rng.seed(self._seed, self._rank, epoch, step, part)
        try:
            result = self._augment(*batch.inputs)
        except Exception as error:  # whatever the user's function raises
            raise ModelError(f"augment raised {type(error).__name__} for {batch.rows} rows: {error}") from error
        finally:
            rng.load_state(saved_state, self._device)
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
