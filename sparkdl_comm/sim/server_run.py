"""Simulated iterations with the parameter server, with any batches of layers.

All ranks do the same at the same time, so one is run for all. It receives (N-1)/N of each layer's bytes over its NIC,
and sends as many. The most urgent transfer has the NIC to itself: gradients before parameters, then the layer that is
used first. A communication begins with a start-up. Start-ups overlap except for their gaps, which follow one another.

Pulls of an iteration begin when their layers are updated. That happens during the previous backward pass, between its
layers, or at its end. With one batch for all pulls, or for all pushes, it is at the end.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, count, pairwise

from sparkdl_comm.errors import InputError
from sparkdl_comm.sim.engine import Action, Engine, Flow, Links

#: First and last layer of a batch, from 0.
Batch = tuple[int, int]
#: Batchings that need no plan: number of layers -> batches.
SIMPLE_BATCHINGS: Mapping[str, Callable[[int], list[Batch]]] = {
    "whole": lambda layers: [(0, layers - 1)],
    "layerwise": lambda layers: [(layer, layer) for layer in range(layers)],
}
#: Iterations to simulate, and how many of the last ones to average.
_RUN, _AVERAGED = 8, 4


@dataclass(frozen=True)
class TimedLayer:
    """Layer with seconds of ``forward`` and ``backward``. ``nbytes``: bytes of its parameters."""

    forward: float
    backward: float
    nbytes: float


@dataclass(frozen=True)
class Overhead:
    """Cost of the path through the executors' JVMs, independent of the bytes.

    :param startup: seconds of a communication, from all ranks being ready until the worker continues.
    :param handling: seconds of handling each batch of gradients.
    """

    startup: float
    handling: float

    @classmethod
    def of_iterations(cls, whole: float, layerwise: float, layers: int) -> Overhead:
        """Return the overhead from iterations without computing and with almost no bytes.

        :param whole: seconds of an iteration with a single batch: two start-ups, and one batch to handle.
        :param layerwise: seconds of an iteration with one batch per layer.
        :param layers: number of layers, at least 2.
        """
        handling = min(whole, max(0.0, layerwise - whole) / (layers - 1))
        return cls((whole - handling) / 2, handling)


@dataclass(frozen=True)
class ServerCost:
    """Cost of the parameter server.

    :param beta: seconds per byte of a NIC.
    :param startup: seconds from requesting a batch to its first byte, including ``gap``.
    :param gap: part of ``startup`` that does not overlap with other start-ups.
    :param summing: seconds per byte to sum a batch's gradients.
    :param updating: seconds per byte to update a batch's parameters.
    :param handling: seconds of the worker per batch of gradients, independent of its size.
    """

    beta: float
    startup: float
    gap: float = 0.0
    summing: float = 0.0
    updating: float = 0.0
    handling: float = 0.0


def iteration_seconds(
    layers: Sequence[TimedLayer], pulls: Sequence[Batch], pushes: Sequence[Batch], cost: ServerCost
) -> float:
    """Return the seconds of an iteration, when iteration times have settled.

    :param layers: with ``nbytes`` of the parameters at other ranks, (N-1)/N of all.
    :param pulls: batches whose parameters travel together, in the order of their layers, covering all layers.
    :param pushes: batches whose gradients travel together, in the same form.
    :raises InputError: batches do not cover all layers in order.
    """
    for batches in (pulls, pushes):
        ends = [(-1, -1), *batches]
        follow = all(last + 1 == first <= end for (_, last), (first, end) in pairwise(ends))
        if not batches or not follow or batches[-1][1] != len(layers) - 1:
            raise InputError(
                f"batches {list(batches)}: must be layers 0 to {len(layers) - 1}, each in one, in their order"
            )
    return _IterationRun(layers, pulls, pushes, cost).seconds()


def equal_cuts(nbytes: Sequence[float]) -> Iterator[list[Batch]]:
    """Yield batchings of the layers into 2, 4, 8, ... batches of about equal bytes.

    If a layer has more bytes than a batch should have, there are fewer batches. iBatch's planner (``Planner.scala``)
    considers these batchings too.
    """
    until = list(accumulate(nbytes))
    batches = 2
    while batches < len(until):
        ends = {bisect_left(until, until[-1] * number / batches) + 1 for number in range(1, batches)} | {len(until)}
        yield [(first, end - 1) for first, end in pairwise([0, *sorted(ends)])]
        batches *= 2


class _IterationRun:
    def __init__(
        self, layers: Sequence[TimedLayer], pulls: Sequence[Batch], pushes: Sequence[Batch], cost: ServerCost
    ) -> None:
        self._layers, self._pulls, self._pushes, self._cost = layers, pulls, pushes, cost
        self._engine = Engine()
        self._nic = _UrgentLink(self._engine, 1 / cost.beta)
        self._overlaps_backward = len(pulls) > 1 and len(pushes) > 1
        self._gap_end = 0.0  # time at which the gap of the last start-up is over
        self._begins: list[float] = []
        self._step = 0  # forward computes layers in steps 0 to L - 1, backward in the next L, the last layer first
        self._is_busy = False
        self._arrived_pulls: set[int] = set()  # pulls whose parameters have arrived
        self._summed: list[int] = []  # pushes whose gradients of all ranks are summed
        self._to_push: list[int] = []  # number of layers of each push whose backward is not done yet
        self._to_update: list[int] = []  # number of layers of each pull that are not updated yet
        self._updates = 0

    def seconds(self) -> float:
        for number in range(len(self._pulls)):
            self._pull(number)
        self._begin()
        self._engine.run(math.inf)
        return (self._begins[-1] - self._begins[-1 - _AVERAGED]) / _AVERAGED

    def _begin(self) -> None:
        self._begins.append(self._engine.now)
        self._step = self._updates = 0
        self._to_push = [last - first + 1 for first, last in self._pushes]
        self._to_update = [last - first + 1 for first, last in self._pulls]
        if len(self._begins) > _RUN:
            self._engine.stop()

    def _work(self) -> None:
        """Start the worker's next action, unless it is busy."""
        depth = len(self._layers)
        if self._is_busy:
            return
        if self._summed and (self._step == 2 * depth or self._overlaps_backward and self._step > depth):
            number = self._summed.pop(0)
            seconds = self._bytes(self._pushes[number]) * self._cost.updating + self._cost.handling
            self._take(seconds, partial(self._updated, number))
        elif self._step < depth and _batch_of(self._pulls, self._step) in self._arrived_pulls:
            self._take(self._layers[self._step].forward, self._stepped)
        elif depth <= self._step < 2 * depth:
            self._take(self._layers[2 * depth - 1 - self._step].backward, self._stepped)

    def _take(self, seconds: float, on_done: Action) -> None:
        self._is_busy = True

        def end() -> None:
            self._is_busy = False
            on_done()
            self._work()

        self._engine.after(seconds, end)

    def _stepped(self) -> None:
        layer = 2 * len(self._layers) - 1 - self._step
        self._step += 1
        if self._step == len(self._layers):
            self._arrived_pulls.clear()
        if self._step > len(self._layers):
            number = _batch_of(self._pushes, layer)
            self._to_push[number] -= 1
            if not self._to_push[number]:
                self._ask((0, -self._pushes[number][0]), self._pushes[number], partial(self._pushed, number))

    def _pushed(self, number: int) -> None:
        def summed() -> None:
            self._summed.append(number)
            self._work()

        self._engine.after(self._bytes(self._pushes[number]) * self._cost.summing, summed)

    def _updated(self, number: int) -> None:
        first, last = self._pushes[number]
        for layer in range(first, last + 1):
            whole = _batch_of(self._pulls, layer)
            self._to_update[whole] -= 1
            if not self._to_update[whole]:
                self._pull(whole)
        self._updates += 1
        if self._updates == len(self._pushes):
            self._begin()

    def _pull(self, number: int) -> None:
        def on_arrival() -> None:
            self._arrived_pulls.add(number)
            self._work()

        self._ask((1, self._pulls[number][0]), self._pulls[number], on_arrival)

    def _ask(self, urgency: tuple[int, int], batch: Batch, on_done: Action) -> None:
        cost = self._cost
        self._gap_end = max(self._engine.now, self._gap_end) + cost.gap
        self._engine.at(
            self._gap_end + cost.startup - cost.gap, partial(self._nic.send, urgency, self._bytes(batch), on_done)
        )

    def _bytes(self, batch: Batch) -> float:
        first, last = batch
        return math.fsum(layer.nbytes for layer in self._layers[first : last + 1])


def _batch_of(batches: Sequence[Batch], layer: int) -> int:
    """Return the number of the batch that contains the layer."""
    return next(number for number, (_, last) in enumerate(batches) if layer <= last)


class _UrgentLink:
    """Link that the most urgent transfer has to itself. Others continue when it is complete."""

    def __init__(self, engine: Engine, rate: float) -> None:
        self._links = Links(engine, [rate])
        self._numbers = count()
        self._waiting: list[tuple[tuple[int, int], int, float, Action]] = []
        self._moving: tuple[tuple[int, int], int, Action, Flow] | None = None

    def send(self, urgency: tuple[int, int], nbytes: float, on_done: Action) -> None:
        heapq.heappush(self._waiting, (urgency, next(self._numbers), nbytes, on_done))
        if self._moving is not None and urgency < self._moving[0]:
            stopped_urgency, number, stopped_done, flow = self._moving
            left = self._links.stop(flow)
            if not left:
                return  # it is complete at this very moment
            heapq.heappush(self._waiting, (stopped_urgency, number, left, stopped_done))
            self._moving = None
        self._start_next()

    def _start_next(self) -> None:
        if self._moving is None and self._waiting:
            urgency, number, nbytes, on_done = heapq.heappop(self._waiting)
            flow = self._links.start((0,), nbytes, partial(self._arrived, on_done))
            self._moving = urgency, number, on_done, flow

    def _arrived(self, on_done: Action) -> None:
        self._moving = None
        on_done()
        self._start_next()
