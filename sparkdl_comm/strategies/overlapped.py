"""Loops in which forward waits for parameters in flight, bucket by bucket: rank 0 or each bucket's owner updates them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.group import CollectiveGroup, RankGroup
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.collectives.work import Work
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import CHEAPEST
from sparkdl_comm.errors import ConfError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.optim.parallel import GangRanks, deal
from sparkdl_comm.optim.shard import Shard
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.parameter_space import count_early_buckets
from sparkdl_comm.space.wait_on_use import WaitOnUse, can_wait_on_use
from sparkdl_comm.strategies.collective import CollectiveStrategy
from sparkdl_comm.strategies.exchange import BucketExchange, CollectiveExchange


class OverlappedStrategy(CollectiveStrategy):
    """Base class of strategies whose parameters may be in flight to this rank when a step begins."""

    def _init_in_flight(self, *, overlap: bool) -> None:
        """Begin with no parameters in flight. The model must be bound before.

        :param overlap: True: forward begins at once and waits for each layer just before it is used, if hooks can see that use
            (:func:`~sparkdl_comm.space.wait_on_use.can_wait_on_use`). Otherwise forward begins when all parameters are here.
        """
        uses_hooks = overlap and can_wait_on_use(self._model.module)
        self._gate = WaitOnUse(self._model, self._wait_for_layer, self._is_complete) if uses_hooks else None
        #: First element of each bucket in flight, and its exchange.
        self._in_flight: list[tuple[int, Work[Any]]] = []

    def _add_in_flight(self, start: int, work: Work[Any]) -> None:
        """Add the bucket of parameters from element ``start`` on, which ``work`` exchanges."""
        self._in_flight.append((start, work))

    def before_forward(self) -> None:
        self._wait_until(self._model.count)

    def begin_step(self) -> None:
        if self._gate is None:
            self.before_forward()

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        if self._gate is not None and not self._is_complete():
            with self._gate:
                yield
        else:
            yield
        self.before_forward()

    def finish(self) -> None:
        self.before_forward()
        self._gang.all_gather(b"", self.conf.timeout)  # no rank may leave before all have the parameters

    def _is_complete(self) -> bool:
        return not self._in_flight

    def _wait_for_layer(self, number: int) -> None:
        """Wait for this layer and all layers before it. Called just before forward uses the layer."""
        layer = self._model.layers[number]
        self._wait_until(layer.start + layer.count)

    def _wait_until(self, stop: int) -> None:
        """Wait until all parameters before element ``stop`` are here."""
        for bucket in [bucket for bucket in self._in_flight if bucket[0] < stop]:
            with self.watch.phase("pull"):
                bucket[1].wait()
            self._in_flight.remove(bucket)


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
        model.bind()
        self._form_group(gang, model, "reduce")
        self._parameter_exchange = self._make_exchange(model.values, "broadcast")
        self._is_root = gang.rank == 0
        self.optimizer = make_optimizer([(p, p) for p in model.parameters] if self._is_root else [])
        self._sparse = make_optimizer.needs_sparse(self.optimizer)
        self._init_in_flight(overlap=self.conf.collective.loop == "root-overlap")

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
            self._add_in_flight(start, self._parameter_exchange.start(start, stop))

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return [(0, self._model.values)] if self._is_root else []


class DecoupledAllReduce(OverlappedStrategy):
    """Strategy with a decoupled all-reduce: each rank updates its own part of the parameters.

    The two halves of an all-reduce are separated. Gradients travel during backward, parameters during the next forward
    pass, when the links would be idle with an all-reduce.

    1. During backward, gradients are reduce-scattered bucket by bucket, as soon as they are ready. Each rank gets the
       sums of its own part of each bucket.
    2. Each rank's optimizer updates that part. Only this rank has its optimizer state.
    3. Parameters are all-gathered bucket by bucket. The next forward pass waits for each layer just before it is used.

    If the algorithm has no reduce-scatter (``mst``, ``tree``), one rank owns each bucket. The bucket is reduced to that
    rank, which later broadcasts the parameters.

    With an elementwise optimizer and without clipping, the result has the same bits as an all-reduce by the same
    algorithm. The exceptions are ``lp``, ``mst`` and ``tree``: they add in an order that depends on the owner.

    Gathering ahead: transfers are hidden best if they are spread over forward and backward in proportion. Backward
    takes about twice as long as forward, so it should carry two thirds of the traffic: all gradients, and a third of
    the parameters. That third is the last layers, whose sums are complete first. They are gathered during backward,
    once all of them are reduced, in the order in which forward uses them.

    - They need separate memory, because backward still uses the old values: two versions of the parameters.
    - They need separate connections: ranks may get the sums at different times, and each connection has one fixed
      order.

    All parameters are gathered after backward, without the extra memory, if the optimizer must see all gradients
    together (clipping, fp16, optimizers that are not torch's own), and on GPUs.

    Buckets have at least ``collective.bucket`` bytes, or are planned (``autotune/auto_strategy.py``).
    """

    is_sharded = True
    has_stripes = True

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        super().check(conf, world)
        if cls.algorithm == CHEAPEST:
            raise ConfError(
                f"{PREFIX}collective.loop={conf.collective.loop}: cheapest and auto may choose two algorithms for gradients"
                " and parameters, with different owners. Set the strategy to one algorithm, such as ring."
            )
        cls._check_operations("collective.loop", conf.collective.loop, *cls._operations())

    @classmethod
    def _operations(cls) -> tuple[Operation, Operation]:
        """Return the operation for gradients and the one for parameters."""
        if "reduce_scatter" in ALGORITHMS[cls.algorithm].operations:
            return "reduce_scatter", "all_gather"
        return "reduce", "broadcast"

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        model.bind()
        reducing, gathering = self._operations()
        self._form_group(gang, model, reducing)
        self._owned_ranges = {start: self._find_owned(start, stop) for start, stop in self._buckets.ranges}
        exact = [
            (start, model.values[start:stop].clone()) for own in self._owned_ranges.values() for start, stop in own
        ]
        self._exact = dict(exact)
        self._shard = Shard(model, exact, model.gradients, make_optimizer, GangRanks(gang, self.conf.timeout))
        self.optimizer = self._shard.optimizer
        self._init_in_flight(overlap=True)
        #: Number of buckets that are gathered during backward, and whether this step has already started to gather them.
        self._ahead_count, self._has_gathered_ahead = 0, False
        if model.device.type == "cpu" and not make_optimizer.needs_all_gradients:
            self._ahead_count = count_early_buckets([stop - start for start, stop in self._buckets.ranges])
        #: Memory of the current parameters and, if buckets are gathered ahead, of the next ones.
        self._memories = [model.values, model.values.clone()] if self._ahead_count else [model.values]
        group = self._group
        if self._ahead_count:
            ranks = RankGroup(gang, range(gang.world), f"parameters {self.number}")
            group = CollectiveGroup(gang, self.algorithm, self.conf, model.device, ranks)
            self._resources.append(group)
        self._parameter_exchanges = [
            CollectiveExchange(group, gathering, memory, self.watch, self._roots) for memory in self._memories
        ]
        self._parameter_exchanges[0].prepare(self._buckets.ranges)

    def gradients(self) -> list[torch.Tensor]:
        return self._shard.gradients

    def update(self, apply: bool = True) -> None:
        if not apply:
            return
        ranges = self._buckets.ranges
        ahead, rest = ranges[: self._ahead_count], ranges[self._ahead_count :]
        with self.watch.phase("update"):
            self._shard.step_range(slice(0, ahead[-1][0] if self._has_gathered_ahead else self._model.count))
        for start, stop in reversed(rest) if self._has_gathered_ahead else [*reversed(ahead), *reversed(rest)]:
            self._gather(start, stop)
        self._has_gathered_ahead = False
        if self._ahead_count:
            self._model.move(self._memories[-1])
            self._memories.reverse()
            self._parameter_exchanges.reverse()

    def stripes(self) -> list[tuple[int, torch.nn.Parameter]]:
        return self._shard.stripes

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return self._shard.owned

    def optimizer_state(self) -> dict[str, Any]:
        return {**super().optimizer_state(), "parts": self._list_ranges()}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        if state.get("parts") != self._list_ranges():
            raise ConfError(
                f"rank {self._gang.rank} updates other parts of the parameters than when the checkpoint was made. Set"
                f" {PREFIX}collective.batching, collective.bucket, collective.block, rails and topology as they were then."
                " If collective.block was 0, set it to a size."
            )
        super().load_optimizer_state({name: value for name, value in state.items() if name != "parts"})

    def details(self) -> dict[str, Any]:
        return {"decoupled": {"buckets": len(self._buckets.ranges), "gathered_in_backward": self._ahead_count}}

    def _make_exchange(self, vector: torch.Tensor, operation: Operation) -> BucketExchange:
        return CollectiveExchange(self._group, operation, vector, self.watch, self._roots)

    @functools.cached_property
    def _roots(self) -> dict[int, int]:
        """Rank that owns each bucket, by the bucket's first element. Empty if the algorithm scatters."""
        if "reduce_scatter" in self._operations():
            return {}
        ranges = self._buckets.ranges
        owners = deal([stop - start for start, stop in ranges], self._gang.world)
        return {start: owner for (start, _), owner in zip(ranges, owners, strict=True)}

    def _find_owned(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of a bucket that this rank owns."""
        if self._roots:
            return [(start, stop)] if self._roots[start] == self._gang.rank else []
        plan = self._group.prepare("reduce_scatter", stop - start, self._model.values.dtype).plan
        return [(start + first, start + last) for first, last in plan.owned_ranges(self._group.place) if first < last]

    def _list_ranges(self) -> list[list[int]]:
        """Return [first element, length] of each range that this rank updates."""
        return [[start, len(values)] for start, values in self._shard.owned]

    def _send(self, start: int, stop: int) -> None:
        super()._send(start, stop)
        self._gather_ahead()

    def _gather_ahead(self) -> None:
        """Update and gather the last layers if all of them are reduced. Called during backward; does not wait."""
        ahead = self._pending[: self._ahead_count]
        if (
            self._has_gathered_ahead
            or len(ahead) < max(1, self._ahead_count)
            or not all(reduced.is_over for reduced in ahead)
        ):
            return
        for reduced, (start, stop) in reversed(list(zip(ahead, self._buckets.ranges, strict=False))):
            reduced.wait()
            with self.watch.phase("update"):
                self._shard.step_range(slice(start, stop))
            self._gather(start, stop)
        self._has_gathered_ahead = True

    def _gather(self, start: int, stop: int) -> None:
        """Start to gather the next parameters of a bucket on all ranks."""
        for first, last in self._owned_ranges[start]:
            self._memories[-1][first:last] = self._exact[first]
        self._add_in_flight(start, self._parameter_exchanges[-1].start(start, stop))
