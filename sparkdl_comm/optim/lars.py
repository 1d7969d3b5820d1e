"""LARS: layer-wise adaptive rate scaling, for large batches (You, Gitman and Ginsburg 2017)."""

from __future__ import annotations

from typing import Any

import torch

from sparkdl_comm.errors import ConfError
from sparkdl_comm.optim.layerwise import Layerwise, check_at_least_zero
from sparkdl_comm.optim.parallel import Ranks


class LARS(Layerwise):
    """SGD with momentum that scales each parameter's gradient, including decay, by a trust ratio.

    The ratio for a parameter ``w`` with gradient ``g`` is ::

        trust_coefficient * |w| / (|g| + weight_decay * |w| + eps)

    It is 1 if one of the norms is 0 or the group has ``adapt=False``; this is then torch.optim.SGD. As in
    torch.optim.SGD, the learning rate is not part of the momentum, so a schedule changes the whole step at once. In the
    paper it is part of the momentum, which is equal while the rate is constant.

    All options but ``parallel`` may differ between groups.

    :param params: parameters or groups of them, as torch.optim takes them.
    :param nesterov: as in torch.optim.SGD.
    :param adapt: whether to apply the ratio. Put biases and normalization layers into a group with False.
    :param parallel: see :class:`~sparkdl_comm.optim.layerwise.Layerwise`.
    :raises ConfError: an option is out of its range.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        eps: float = 1e-8,
        nesterov: bool = False,
        *,
        adapt: bool = True,
        parallel: bool | Ranks = False,
    ) -> None:
        check_at_least_zero(
            lr=lr, momentum=momentum, weight_decay=weight_decay, trust_coefficient=trust_coefficient, eps=eps
        )
        if nesterov and not momentum:
            raise ConfError("nesterov=True: needs a momentum greater than 0")
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "eps": eps, "nesterov": nesterov}
        super().__init__(params, {**options, "trust_coefficient": trust_coefficient, "adapt": adapt}, parallel)

    def direction(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        return parameter.grad

    def ratio(self, weights: float, direction: float, group: dict[str, Any]) -> float:
        rate: float = group["trust_coefficient"] * weights
        scale: float = direction + group["weight_decay"] * weights + group["eps"]
        return rate / scale

    def move(self, parameter: torch.Tensor, direction: torch.Tensor, ratio: float, group: dict[str, Any]) -> None:
        if group["weight_decay"]:
            direction = direction.add(parameter, alpha=group["weight_decay"])
        if not group["momentum"]:
            parameter.add_(direction, alpha=-group["lr"] * ratio)
            return
        state = self.state[parameter]
        if "momentum_buffer" in state:
            state["momentum_buffer"].mul_(group["momentum"]).add_(direction, alpha=ratio)
        else:
            state["momentum_buffer"] = direction * ratio
        step = state["momentum_buffer"]
        if group["nesterov"]:
            step = (direction * ratio).add_(step, alpha=group["momentum"])
        parameter.add_(step, alpha=-group["lr"])
