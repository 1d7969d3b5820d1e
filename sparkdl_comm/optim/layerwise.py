"""LARS and LAMB: step sizes depend on norms of whole parameters, which ranks may compute in parts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.optim.parallel import Ranks, SingleRank, parallel

#: Elements per partial norm. A longer float32 sum loses digits, and torch splits it between its threads.
_CHUNK = 1 << 14


def norm(tensor: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of a tensor of any shape: a scalar, float32 or float64.

    Its bits do not depend on torch's number of threads. For two million float32 values its relative error is 1e-7;
    torch's norm, a single sum on the CPU, has 4e-5.
    """
    flat, dtype = tensor.reshape(-1), torch.promote_types(tensor.dtype, torch.float32)
    if flat.numel() <= _CHUNK:
        whole: torch.Tensor = torch.linalg.vector_norm(flat, dtype=dtype)
        return whole
    rows = flat[: flat.numel() // _CHUNK * _CHUNK].view(-1, _CHUNK)
    rest = torch.linalg.vector_norm(flat[rows.numel() :], dtype=dtype)
    parts = torch.cat([torch.linalg.vector_norm(rows, dim=1, dtype=dtype), rest.view(1)])
    total: torch.Tensor = torch.linalg.vector_norm(parts, dtype=torch.float64)
    return total


class Norms(ABC):
    """Source of norms of whole parameters. All ranks call it once per optimizer step, also ranks that request no norms."""

    @abstractmethod
    def __call__(self, parameters: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[tuple[float, float]]:
        """Return two L2 norms per parameter: of the whole parameter, and of its other tensor, such as the gradient.

        All ranks get the same bits if they have the same parameters.

        :param parameters: parameters of the optimizer, each once.
        :param others: one tensor per parameter.
        """


class DistributedNorms(Norms):
    """Norms for ranks that all have whole parameters: each rank computes a part of them (:func:`~.parallel.parallel`)."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __call__(self, parameters: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[tuple[float, float]]:
        found = parallel(norm, [*parameters, *others], self._ranks, dtype=torch.float64).tolist()
        return list(zip(found[: len(parameters)], found[len(parameters) :], strict=True))


#: Norms that a rank computes by itself.
LOCAL_NORMS: Norms = DistributedNorms(SingleRank())


class StripedNorms(Norms):
    """Norms for parameters that are striped over the ranks.

    The ranks' squared norms are added up in the order of the ranks. This takes one all-gather of 16 bytes per parameter
    of the model.

    :param numbers: ``id`` of an optimizer's parameter -> number of the whole parameter that it is a stripe of.
    :param count: number of the model's parameters.
    """

    def __init__(self, numbers: Mapping[int, int], count: int, ranks: Ranks) -> None:
        self._numbers, self._count, self._ranks = numbers, count, ranks

    def __call__(self, parameters: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[tuple[float, float]]:
        numbers = torch.tensor([self._numbers[id(parameter)] for parameter in parameters], dtype=torch.int64)
        squares = torch.zeros((self._count, 2), dtype=torch.float64)
        for column, tensors in enumerate((parameters, others)):
            if tensors:
                own = torch.stack([norm(tensor) for tensor in tensors]).cpu().double().square()
                squares[:, column].index_add_(0, numbers, own)
        first, *rest = self._ranks.all_gather(squares)
        total = first.clone()
        for part in rest:
            total += part
        return [(one, other) for one, other in total[numbers].sqrt().tolist()]


class Layerwise(torch.optim.Optimizer, ABC):
    """Optimizer whose steps need the L2 norms of whole parameters and of one tensor per parameter; all else is
    elementwise.

    It may update stripes of parameters if :attr:`norms` returns the norms of the whole parameters. Strategy ps provides
    that, and accepts subclasses of this class after testing them (``elementwise.py``).

    A group's ``adapt`` says whether its parameters use the norms; if not, their ratio is 1. It is usually False for
    biases and normalization layers.

    ``parallel`` saves time if the norms take longer than a small all-gather: on CPUs, from some millions
    of parameters on (``python python/benchmarks compression/pto``). All ranks get the same bits, even if their
    processors round differently.

    :param parallel: which ranks compute the norms, if every rank has all parameters. False: each rank computes all
        norms. True: each rank of a fit computes a part (:mod:`sparkdl_comm.optim.parallel`), if its strategy has every
        rank update all parameters; else as False. A :class:`sparkdl_comm.Communicator`: its ranks compute a part each,
        in your own training function; all of them must step.
    """

    #: Source of the norms, called once per step. A sharded strategy, which cuts parameters into stripes, sets it.
    norms: Norms = LOCAL_NORMS

    _is_parallel = False

    def __init__(self, params: Any, defaults: dict[str, Any], parallel: bool | Ranks) -> None:
        if type(defaults["adapt"]) is not bool:
            raise ConfError(f"adapt={defaults['adapt']!r}: must be True or False.")
        super().__init__(params, defaults)
        if isinstance(parallel, bool):
            self._is_parallel = parallel
        elif hasattr(parallel, "all_gather"):
            self.norms = DistributedNorms(parallel)
        else:
            raise ConfError(f"parallel={parallel!r}: must be True, False or a Communicator")

    def share(self, ranks: Ranks) -> None:
        """Distribute the norms over ``ranks`` if ``parallel`` is True. All ranks must have the same parameters."""
        if self._is_parallel:
            self.norms = DistributedNorms(ranks)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient. Return the result of ``closure``, which recomputes the gradients.

        :raises ModelError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updates = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for _, parameter in updates:
            if parameter.grad.is_sparse:
                raise ModelError(
                    f"{type(self).__name__} takes no sparse gradients, and a parameter of shape {list(parameter.shape)} has"
                    " one. Set sparse=False in its nn.Embedding, or use torch.optim.SparseAdam."
                )
        directions = [self.direction(parameter, group) for group, parameter in updates]
        adapted = [number for number, (group, _) in enumerate(updates) if group["adapt"]]
        norms = self.norms([updates[number][1] for number in adapted], [directions[number] for number in adapted])
        ratios = [1.0] * len(updates)
        for number, (weights, direction) in zip(adapted, norms, strict=True):
            if weights and direction:  # a ratio of zero norms is meaningless
                ratios[number] = self.ratio(weights, direction, updates[number][0])
        for (group, parameter), along, ratio in zip(updates, directions, ratios, strict=True):
            self.move(parameter, along, ratio, group)
        return loss

    @abstractmethod
    def direction(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """Return the tensor whose norm the ratio needs besides the parameter's, with the parameter's shape.

        All directions are kept until the parameters are moved. They take as much memory as the parameters, unless they
        are the gradients.
        """

    @abstractmethod
    def ratio(self, weights: float, direction: float, group: dict[str, Any]) -> float:
        """Return the trust ratio from the norms of a whole parameter and of its direction; neither is 0."""

    @abstractmethod
    def move(self, parameter: torch.Tensor, direction: torch.Tensor, ratio: float, group: dict[str, Any]) -> None:
        """Update ``parameter`` in place. ``direction`` has its shape."""


def check_at_least_zero(**options: float) -> None:
    """Check that no option is negative or NaN.

    :raises ConfError: an option is.
    """
    for name, value in options.items():
        if not value >= 0:
            raise ConfError(f"{name}={value!r}: must be a number that is not negative")


def check_below_one(**options: float) -> None:
    """Check that each option is in [0, 1).

    :raises ConfError: an option is not.
    """
    for name, value in options.items():
        if not 0 <= value < 1:
            raise ConfError(f"{name}={value!r}: must be at least 0 and less than 1")


class LARS(Layerwise):
    """SGD with momentum that scales each parameter's gradient, including decay, by a trust ratio.

    Layer-wise adaptive rate scaling, for large batches (You, Gitman and Ginsburg 2017).

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

    #: Module name in saved estimators, independent of the file's place.
    __module__ = "sparkdl_comm.optim"

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


class LAMB(Layerwise):
    """AdamW in which the step of each parameter ``w``, including decay, has the norm of ``lr`` times the parameter.

    Layer-wise adaptive moments, for large batches (You et al. 2020).

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

    #: Module name in saved estimators, independent of the file's place.
    __module__ = "sparkdl_comm.optim"

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
