"""One rank updates all parameters: the linear-pipeline paper's Algorithms 1 and 2, for algorithms that reduce and broadcast.

1. backward: gradients are reduced (summed) to rank 0, bucket by bucket, as soon as they are there;
2. rank 0 takes the optimizer's step; only it has the optimizer's state;
3. parameters are broadcast bucket by bucket in the order in which forward uses them. With ``root-overlap`` (Algorithm 1)
   forward begins at once and waits for each layer when it comes to it, with ``root`` (Algorithm 2) for all of them.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator

import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.wait_on_use import WaitOnUse, can_wait_on_use
from sparkdl_comm.strategies.collective import CollectiveStrategy
from sparkdl_comm.strategies.exchange import Pending


class CollectiveAtRoot(CollectiveStrategy):
    """Rank 0 owns all parameters, the others own none."""

    sharded = True

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        super().check(conf, world)
        cls._check_does("collective.loop", conf.loop, "reduce", "broadcast")

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        device = next(model.module.parameters()).device
        model.bind(torch.empty(model.count, device=device), torch.zeros(model.count, device=device))
        self._form(gang, model, "reduce")
        self._parameters = self._exchange_of(model.values, "broadcast")
        self._is_root = gang.rank == 0
        self.optimizer = make_optimizer([(p, p) for p in model.parameters] if self._is_root else [])
        self._sparse = make_optimizer.wants_sparse(self.optimizer)
        overlap = self.conf.loop == "root-overlap" and can_wait_on_use(model.module)
        self._gate = WaitOnUse(model, self._need, self._all_there) if overlap else None
        self._coming: deque[Pending] = deque()  # parameters on their way here, in the order of the vector

    def before_forward(self) -> None:
        self._await(self._model.count)

    def begin_step(self) -> None:
        if self._gate is None:
            self.before_forward()

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        if self._gate is not None and not self._all_there():
            with self._gate:
                yield
        else:
            yield
        self.before_forward()

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
            self._coming.append(self._parameters.start(start, stop))

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return [(0, self._model.values)] if self._is_root else []

    def finish(self) -> None:
        self.before_forward()
        self._gang.all_gather(b"", self.conf.timeout)  # nobody leaves before all have the parameters

    def _all_there(self) -> bool:
        return not self._coming

    def _need(self, number: int) -> None:
        """Forward is about to use this layer."""
        layer = self._model.layers[number]
        self._await(layer.start + layer.count)

    def _await(self, stop: int) -> None:
        """Returns when the parameters up to element ``stop`` are there."""
        while self._coming and self._coming[0].start < stop:
            with self.watch.phase("pull"):
                self._coming[0].wait()
            self._coming.popleft()
