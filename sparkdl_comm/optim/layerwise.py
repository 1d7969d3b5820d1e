"""What LARS and LAMB have in common: how far a parameter moves depends on norms of whole parameters, which ranks may share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.optim.norms import LOCAL, DealtNorms, Norms
from sparkdl_comm.optim.parallel import Ranks


class Layerwise(torch.optim.Optimizer, ABC):
    """An optimizer whose steps need the L2 norms of whole parameters, and of what belongs to each; all else is elementwise.

    So it may update stripes of parameters if :attr:`norms` gives it the norms of the whole ones: strategy ps sees to that,
    and takes subclasses of this class after it has tried them out (``elementwise.py``).

    A group's ``adapt`` says whether the norms count for its parameters; where not, their ratio is 1. It is usually False for
    biases and the layers of normalization.

    :param parallel: who computes norms where every rank has all parameters. False: each rank all of them. True: each rank of
        a fit its part of them (:mod:`sparkdl_comm.optim.parallel`), if its strategy has every rank update all parameters; else
        as False. A :class:`sparkdl_comm.Communicator`: its ranks, in a training function of one's own; all of them step. What
        is dealt out has the same bits on all ranks, also where their processors do not round alike. It saves time where norms
        take longer than a small all-gather: on CPUs, from some millions of parameters on (``python/bench_pto.py``).
    """

    #: Asked once in every step. Whoever cuts parameters into stripes sets it.
    norms: Norms = LOCAL

    _is_parallel = False

    def __init__(self, params: Any, defaults: dict[str, Any], parallel: bool | Ranks) -> None:
        if type(defaults["adapt"]) is not bool:
            raise ConfError(f"adapt={defaults['adapt']!r}: must be True or False")
        super().__init__(params, defaults)
        if isinstance(parallel, bool):
            self._is_parallel = parallel
        elif hasattr(parallel, "all_gather"):
            self.norms = DealtNorms(parallel)
        else:
            raise ConfError(f"parallel={parallel!r}: must be True, False or a Communicator")

    def share(self, ranks: Ranks) -> None:
        """Deals the norms out over ``ranks``, all of which have the same parameters, if ``parallel`` said so."""
        if self._is_parallel:
            self.norms = DealtNorms(ranks)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters that have a gradient. Returns what ``closure`` did, which computes the gradients anew.

        :raises ModelError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        due = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for _, parameter in due:
            if parameter.grad.is_sparse:
                raise ModelError(
                    f"{type(self).__name__} takes no sparse gradients, and a parameter of shape {list(parameter.shape)} has"
                    " one: set sparse=False of its nn.Embedding, or take torch.optim.SparseAdam"
                )
        directions = [self.direction(parameter, group) for group, parameter in due]
        adapted = [number for number, (group, _) in enumerate(due) if group["adapt"]]
        norms = self.norms([due[number][1] for number in adapted], [directions[number] for number in adapted])
        ratios = [1.0] * len(due)
        for number, (weights, direction) in zip(adapted, norms, strict=True):
            if weights and direction:  # a ratio to nothing says nothing
                ratios[number] = self.ratio(weights, direction, due[number][0])
        for (group, parameter), along, ratio in zip(due, directions, ratios, strict=True):
            self.move(parameter, along, ratio, group)
        return loss

    @abstractmethod
    def direction(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """What the ratio is made of, beside the parameter; of its shape. It is kept until the parameter is moved, so all of
        them take as much memory as the parameters, unless they are the gradients."""

    @abstractmethod
    def ratio(self, weights: float, direction: float, group: dict[str, Any]) -> float:
        """The trust ratio, of the norms of a whole parameter and of its direction; neither is 0."""

    @abstractmethod
    def move(self, parameter: torch.Tensor, direction: torch.Tensor, ratio: float, group: dict[str, Any]) -> None:
        """Updates the parameter in place."""


def check_at_least_zero(**options: float) -> None:
    """ConfError if an option is negative or no number."""
    for name, value in options.items():
        if not value >= 0:
            raise ConfError(f"{name}={value!r}: must be a number that is not negative")


def check_below_one(**options: float) -> None:
    """ConfError if an option is not in [0, 1)."""
    for name, value in options.items():
        if not 0 <= value < 1:
            raise ConfError(f"{name}={value!r}: must be at least 0 and less than 1")
