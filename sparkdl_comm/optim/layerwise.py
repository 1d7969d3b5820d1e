"""Base of LARS and LAMB: step sizes depend on norms of whole parameters, which ranks may compute in parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.optim.norms import LOCAL_NORMS, DistributedNorms, Norms
from sparkdl_comm.optim.parallel import Ranks


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
        """Update the parameter in place."""


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
