"""Rank 0 updates all parameters: Algorithms 1 and 2 of the linear-pipeline paper.

They need an algorithm with reduce and broadcast.

1. During backward, gradients are reduced (summed) to rank 0, bucket by bucket, as soon as they are ready.
2. Rank 0 takes the optimizer's step. Only rank 0 has the optimizer's state.
3. Rank 0 broadcasts the parameters bucket by bucket, in the order in which forward uses them. With ``root-overlap``
   (Algorithm 1) forward begins at once and waits for each layer just before it is used. With ``root`` (Algorithm 2) it waits
   for all parameters first.
"""

from __future__ import annotations

import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.arrivals import Arrivals, OverlappedStrategy


class RootUpdate(OverlappedStrategy):
    """Strategy in which rank 0 owns all parameters and the other ranks own none."""

    is_sharded = True

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        super().check(conf, world)
        cls._check_operations("collective.loop", conf.collective.loop, "reduce", "broadcast")

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        device = next(model.module.parameters()).device
        model.bind(torch.empty(model.count, device=device), torch.zeros(model.count, device=device))
        self._form_group(gang, model, "reduce")
        self._parameter_exchange = self._make_exchange(model.values, "broadcast")
        self._is_root = gang.rank == 0
        self.optimizer = make_optimizer([(p, p) for p in model.parameters] if self._is_root else [])
        self._sparse = make_optimizer.needs_sparse(self.optimizer)
        self._arrivals = Arrivals(model, self.watch, overlap=self.conf.collective.loop == "root-overlap")

    def gradients(self) -> list[torch.Tensor]:
        return [self._model.gradients] if self._is_root else []

    def update(self, apply: bool = True) -> None:
        if not apply:
            return
        with self.watch.phase("update"):
            if self._is_root:
                self._model.settle_gradients(self._sparse)
            self.optimizer.step()
        for start, stop in reversed(self._buckets.ranges):
            self._arrivals.add(start, self._parameter_exchange.start(start, stop))

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return [(0, self._model.values)] if self._is_root else []
