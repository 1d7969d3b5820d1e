"""LAMB: layer-wise adaptive moments, for large batches (You et al. 2020)."""

from __future__ import annotations

import math
from typing import Any

import torch

from sparkdl_comm.optim.layerwise import Layerwise, check_at_least_zero, check_below_one
from sparkdl_comm.optim.parallel import Ranks


class LAMB(Layerwise):
    """AdamW in which the step of each parameter ``w``, including decay, is as long as ``lr`` times the parameter.

    A step is ``lr * ratio * u``. ``u = m / (sqrt(v) + eps) + weight_decay * w``, with Adam's bias-corrected moments
    ``m`` and ``v`` (the paper's Algorithm 2). ``ratio = |w| / |u|``. It is 1 if one of the norms is 0 or the group has
    ``adapt=False``; the step is then that of torch.optim.AdamW.

    All options but ``parallel`` may differ between groups. In a step, ``u`` of all parameters takes as much memory as
    the parameters.

    :param params: parameters or groups of them, as torch.optim takes them.
    :param betas: decay rates of the mean of the gradients, and of the mean of their squares.
    :param adapt: whether to apply the ratio. Put biases and normalization layers into a group with False.
    :param parallel: see :class:`~sparkdl_comm.optim.layerwise.Layerwise`.
    :raises ConfError: an option is out of its range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        adapt: bool = True,
        parallel: bool | Ranks = False,
    ) -> None:
        check_at_least_zero(lr=lr, eps=eps, weight_decay=weight_decay)
        first, second = betas
        check_below_one(**{"betas[0]": first, "betas[1]": second})
        options = {"lr": lr, "betas": (first, second), "eps": eps, "weight_decay": weight_decay, "adapt": adapt}
        super().__init__(params, options, parallel)

    def direction(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            state.update(moments, step=torch.tensor(0.0))  # the same names as in torch.optim.Adam
        state["step"] += 1
        steps = state["step"].item()
        first, second = group["betas"]
        mean = state["exp_avg"].lerp_(parameter.grad, 1 - first)
        squares = state["exp_avg_sq"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
        scale = squares.sqrt().div_(math.sqrt(1 - second**steps)).add_(group["eps"])
        along = torch.div(mean, scale, out=scale).div_(1 - first**steps)
        return along.add_(parameter, alpha=group["weight_decay"])

    def ratio(self, weights: float, direction: float, group: dict[str, Any]) -> float:
        return weights / direction

    def move(self, parameter: torch.Tensor, direction: torch.Tensor, ratio: float, group: dict[str, Any]) -> None:
        parameter.add_(direction, alpha=-group["lr"] * ratio)
