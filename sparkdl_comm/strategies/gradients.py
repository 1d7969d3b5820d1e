"""Gradient rule between aggregation and update: undo loss scaling, clip the global norm, skip steps that overflow."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch

from sparkdl_comm.errors import NonFiniteLossError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import Optimization
from sparkdl_comm.strategies.base import Strategy

#: Initial scale, and finite steps before it doubles: the defaults of torch.amp.GradScaler.
_FIRST_SCALE = 2.0**16
_GROW_AFTER = 2000


class GradientRule:
    """Rule that scales, clips or rejects a step's gradients, with the same decision on all ranks.

    In a sharded strategy a rank has only its shard's gradients. The ranks then all-gather their squared norms, 8 bytes per
    step, and add them in rank order. Nothing is sent unless gradients are clipped or the precision is fp16.
    """

    def __init__(self, optimization: Optimization, gang: Gang, strategy: Strategy, timeout: float) -> None:
        self._is_idle = not optimization.needs_all_gradients
        self._max_norm = optimization.max_grad_norm
        #: True if a step with a non-finite gradient is skipped and the scale of the loss is halved (fp16).
        self.can_skip_steps = optimization.precision == "fp16"
        self._gang, self._strategy, self._timeout = gang, strategy, timeout
        #: Factor of the loss that keeps small gradients from vanishing in fp16. A power of two, so scaling is exact.
        self.scale = _FIRST_SCALE if self.can_skip_steps else 1.0
        self._finite_steps = 0

    def prepare(self, step: int) -> bool:
        """Unscale and clip the gradients in place. Return False if the step, counted from 1, must be skipped.

        :raises NonFiniteLossError: the gradient is not finite, and a smaller scale of the loss would not help.
        """
        if self._is_idle:
            return True
        gradients = self._strategy.gradients()
        norm = math.sqrt(self._squared_norm(gradients)) / self.scale
        if not math.isfinite(norm):
            if not self.can_skip_steps or self.scale <= 1.0:
                fp16 = (
                    ", though the loss is scaled down to 1 (precision='fp16': try bf16)" if self.can_skip_steps else ""
                )
                raise NonFiniteLossError(
                    f"the gradient's norm became {norm} at step {step}{fp16}: lower the learning rate, or look for NaN in the"
                    " features",
                    step=step,
                )
            self.scale /= 2
            self._finite_steps = 0
            return False
        factor = 1 / self.scale
        if self._max_norm is not None:
            factor *= min(1.0, self._max_norm / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_
        if factor != 1.0:
            for gradient in gradients:
                gradient.mul_(factor)
        self._finite_steps += 1
        if self.can_skip_steps and self._finite_steps % _GROW_AFTER == 0:
            self.scale *= 2
        return True

    def state(self) -> dict[str, Any]:
        return {"scale": self.scale, "finite_steps": self._finite_steps}

    def load_state(self, state: dict[str, Any]) -> None:
        self.scale, self._finite_steps = state["scale"], state["finite_steps"]

    def _squared_norm(self, gradients: list[torch.Tensor]) -> float:
        own: float = sum(torch.linalg.vector_norm(gradient).item() ** 2 for gradient in gradients)
        if not self._strategy.is_sharded:
            return own
        parts = self._gang.all_gather(struct.pack("<d", own), self._timeout)
        total = 0.0
        for part in parts:
            total += struct.unpack("<d", part)[0]
        return total
