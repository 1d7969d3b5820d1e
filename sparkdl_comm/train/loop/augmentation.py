"""What the user's ``augment`` makes of a batch's inputs, in each epoch anew, after the rows were read and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from sparkdl_comm.data.cache import Batch
from sparkdl_comm.errors import ModelError
from sparkdl_comm.train.loop import rng


class Augmentation:
    """Calls ``augment`` with the inputs of a rank's batches for training. What it draws from the generators of python, numpy
    and torch depends on the seed, the rank, and the step alone, not on what was drawn before; nor does it change what is
    drawn afterwards."""

    def __init__(self, augment: Callable[..., Any], seed: int, rank: int, device: torch.device) -> None:
        self._augment, self._seed, self._rank, self._device = augment, seed, rank, device

    def __call__(self, batch: Batch, epoch: int, step: int, part: int) -> Batch:
        """The batch with other inputs. ``step``: of the epoch; ``part``: of the step, where it is computed in several.

        :raises ModelError: ``augment`` raised, or returned something that cannot be these inputs.
        """
        if not batch.rows:
            return batch
        before = rng.state(self._device)
        rng.seed(self._seed, self._rank, epoch, step, part)
        try:
            made = self._augment(*batch.inputs)
        except Exception as error:  # whatever the user's function raises
            raise ModelError(f"augment raised {type(error).__name__} for {batch.rows} rows: {error}") from error
        finally:
            rng.load_state(before, self._device)
        return replace(batch, inputs=_checked(made, batch))


def _checked(made: Any, batch: Batch) -> tuple[Any, ...]:
    inputs = (made,) if len(batch.inputs) == 1 else made
    if not isinstance(inputs, tuple) or len(inputs) != len(batch.inputs):
        raise ModelError(
            f"augment returned {type(made).__name__}: with {len(batch.inputs)} feature columns it must return a tuple of as"
            " many"
        )
    for new, old in zip(inputs, batch.inputs, strict=True):
        if not isinstance(old, torch.Tensor):
            continue  # what collate_fn made
        if not isinstance(new, torch.Tensor):
            raise ModelError(
                f"augment returned {type(new).__name__} for a tensor of shape {list(old.shape)}; return a tensor"
            )
        if new.shape[:1] != old.shape[:1]:
            raise ModelError(f"augment returned shape {list(new.shape)} for {len(old)} rows; return one row for each")
    return inputs
