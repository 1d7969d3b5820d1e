"""What the user says of how gradients become an update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

#: A module, or anything that returns one when called without arguments (a class, a function).
ModelLike: TypeAlias = "torch.nn.Module | Callable[[], torch.nn.Module]"
#: ``parameters`` -> optimizer. In strategy ps, the parameters are those of one shard.
OptimizerFactory: TypeAlias = Callable[[Any], torch.optim.Optimizer]
#: ``optimizer`` -> a scheduler of torch.optim.lr_scheduler. One that takes ``total_steps`` or
#: ``num_training_steps`` gets them.
SchedulerFactory: TypeAlias = Callable[..., Any]
#: ``module`` -> groups, as torch.optim takes them.
ParamGroups: TypeAlias = Callable[[torch.nn.Module], list[dict[str, Any]]]


@dataclass(frozen=True)
class Optimization:
    """How gradients become an update.

    ``accumulation_steps``: batches per optimizer step. ``max_grad_norm``: L2 norm over all parameters above which the
    gradient is scaled down to it; None: never. ``scheduler_interval``: ``epoch`` or ``step``; None: as the scheduler
    needs it. ``precision``: of torch.autocast: ``fp32`` (off), ``bf16`` or ``fp16``.
    """

    optimizer: OptimizerFactory
    param_groups: ParamGroups | None = None
    lr_scheduler: SchedulerFactory | None = None
    scheduler_interval: str | None = None
    accumulation_steps: int = 1
    max_grad_norm: float | None = None
    precision: str = "fp32"

    @property
    def judges_gradients(self) -> bool:
        """Whether the update of any parameter depends on the gradients of all."""
        return self.max_grad_norm is not None or self.precision == "fp16"
