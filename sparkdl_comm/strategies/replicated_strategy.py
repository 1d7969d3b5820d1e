"""Base class of strategies in which every rank updates all parameters with the summed gradients."""

from __future__ import annotations

import torch

from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.layerwise import Layerwise
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.optim.parallel import GangRanks
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import Strategy


class ReplicatedStrategy(Strategy):
    """Strategy in which every rank takes the whole optimizer step in place. A subclass sums the gradients."""

    can_take_changes = True

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        device = next(model.module.parameters()).device
        model.bind(torch.empty(model.count, device=device), torch.zeros(model.count, device=device))
        self._model = model
        self._world = gang.world
        self.optimizer = make_optimizer([(parameter, parameter) for parameter in model.parameters])
        if isinstance(self.optimizer, Layerwise):
            self.optimizer.share(GangRanks(gang, self.conf.timeout))
        self._sparse = make_optimizer.needs_sparse(self.optimizer)

    def before_forward(self) -> None:
        """Do nothing: the parameters are already in place."""

    def gradients(self) -> list[torch.Tensor]:
        return [self._model.gradients]

    def update(self, apply: bool = True) -> None:
        with self.watch.phase("update"):
            if apply:
                self._model.settle_gradients(self._sparse)
                self.optimizer.step()

    def stripes(self) -> list[tuple[int, torch.nn.Parameter]]:
        return [(entry.start, own) for entry, own in zip(self._model.entries, self._model.parameters, strict=True)]

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return [(0, self._model.values)]
