"""Optimization settings of the user: how gradients become an update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

#: A module, or a callable without arguments that returns one (a class, a function).
ModelLike: TypeAlias = "torch.nn.Module | Callable[[], torch.nn.Module]"
#: ``parameters`` -> optimizer. With strategy ps, the parameters are those of one shard.
OptimizerFactory: TypeAlias = Callable[[Any], torch.optim.Optimizer]
#: ``optimizer`` -> a scheduler of torch.optim.lr_scheduler. A parameter ``total_steps`` or ``num_training_steps`` is
#: filled in.
SchedulerFactory: TypeAlias = Callable[..., Any]
#: ``module`` -> parameter groups, as torch.optim takes them.
ParamGroups: TypeAlias = Callable[[torch.nn.Module], list[dict[str, Any]]]


@dataclass(frozen=True)
class Optimization:
    """Settings of how gradients become an update.

    :param accumulation_steps: batches per optimizer step.
    :param max_grad_norm: the gradient is scaled down to this L2 norm over all parameters if its norm is larger. None:
        never.
    :param scheduler_interval: ``epoch`` or ``step``. None: as the scheduler needs it.
    :param precision: precision of torch.autocast: ``fp32`` (off), ``bf16`` or ``fp16``.
    """

    optimizer: OptimizerFactory
    param_groups: ParamGroups | None = None
    lr_scheduler: SchedulerFactory | None = None
    scheduler_interval: str | None = None
    accumulation_steps: int = 1
    max_grad_norm: float | None = None
    precision: str = "fp32"

    @property
    def needs_all_gradients(self) -> bool:
        """True if the update of any parameter depends on the gradients of all parameters."""
        return self.max_grad_norm is not None or self.precision == "fp16"
