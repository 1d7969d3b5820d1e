"""Loops in which forward waits for parameters in flight, bucket by bucket, such as the loop in which rank 0 updates them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from sparkdl_comm.collectives.work import Work
from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.wait_on_use import WaitOnUse, can_wait_on_use
from sparkdl_comm.strategies.base import Stopwatch
from sparkdl_comm.strategies.collective import CollectiveStrategy


class Arrivals:
    """Parameters in flight to one rank.

    A strategy's ``begin_step``, ``forward`` and ``before_forward`` call :meth:`begin_step`, :meth:`forward` and :meth:`wait`.

    :param overlap: True: forward begins at once and waits for each layer just before it is used, if hooks can see that use
        (:func:`~sparkdl_comm.space.wait_on_use.can_wait_on_use`). Otherwise forward begins when all parameters are here.
    """

    def __init__(self, model: FlatModel, watch: Stopwatch, *, overlap: bool) -> None:
        self._model, self._watch = model, watch
        uses_hooks = overlap and can_wait_on_use(model.module)
        self._gate = WaitOnUse(model, self._wait_for_layer, self._is_complete) if uses_hooks else None
        #: First element of each bucket in flight, and its exchange.
        self._in_flight: list[tuple[int, Work[Any]]] = []

    def add(self, start: int, work: Work[Any]) -> None:
        """Add the bucket of parameters from element ``start`` on, which ``work`` exchanges."""
        self._in_flight.append((start, work))

    def begin_step(self) -> None:
        """Wait until forward may begin."""
        if self._gate is None:
            self.wait()

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Run a forward pass inside. Each parameter is here when it is used; at the end all are."""
        if self._gate is not None and not self._is_complete():
            with self._gate:
                yield
        else:
            yield
        self.wait()

    def wait(self) -> None:
        """Wait until all parameters are here."""
        self._wait_until(self._model.count)

    def _is_complete(self) -> bool:
        return not self._in_flight

    def _wait_for_layer(self, number: int) -> None:
        """Wait for this layer and all layers before it. Called just before forward uses the layer."""
        layer = self._model.layers[number]
        self._wait_until(layer.start + layer.count)

    def _wait_until(self, stop: int) -> None:
        """Wait until all parameters before element ``stop`` are here."""
        for bucket in [bucket for bucket in self._in_flight if bucket[0] < stop]:
            with self._watch.phase("pull"):
                bucket[1].wait()
            self._in_flight.remove(bucket)


class OverlappedStrategy(CollectiveStrategy):
    """Base class of strategies whose parameters may be in flight when a step begins. ``join`` sets ``_arrivals``."""

    _arrivals: Arrivals

    def before_forward(self) -> None:
        self._arrivals.wait()

    def begin_step(self) -> None:
        self._arrivals.begin_step()

    def forward(self) -> contextlib.AbstractContextManager[None]:
        return self._arrivals.forward()

    def finish(self) -> None:
        self.before_forward()
        self._gang.all_gather(b"", self.conf.timeout)  # no rank may leave before all have the parameters


class RootUpdate(OverlappedStrategy):
    """Strategy in which rank 0 owns all parameters: Algorithms 1 and 2 of the linear-pipeline paper.

    They need an algorithm with reduce and broadcast.

    1. During backward, gradients are reduced (summed) to rank 0, bucket by bucket, as soon as they are ready.
    2. Rank 0 takes the optimizer's step. Only rank 0 has the optimizer's state.
    3. Rank 0 broadcasts the parameters bucket by bucket, in the order in which forward uses them. With ``root-overlap``
       (Algorithm 1) forward begins at once and waits for each layer just before it is used. With ``root`` (Algorithm 2) it
       waits for all parameters first.
    """

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
