"""Transfers between hosts. Each host's NIC has a rate out and a rate in, and the network core has no congestion.

A flow may have a rate limit, by which a pacing sender keeps to its schedule: a paced transfer sends its pieces in order, none
before its start time, none above its rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparkdl_comm.fabric.core.messages import Piece
from sparkdl_comm.sim.engine import Action, Engine
from sparkdl_comm.sim.links import ROUNDING, Flow, Links


class Paced:
    """Paced transfer from host to host. It begins at once, and calls ``done`` when all bytes have arrived."""

    def __init__(
        self,
        engine: Engine,
        flows: Flows,
        ends: tuple[int, int],
        size: int,
        schedule: Sequence[Piece],
        done: Action,
    ) -> None:
        self._engine, self._flows, self._ends, self._size, self._done = engine, flows, ends, size, done
        #: Bytes not yet given to a flow.
        self._rest = float(size)
        self._flow: Flow | None = None
        self._generation = 0
        self.repace(schedule)

    @property
    def sent(self) -> int:
        """Bytes sent so far."""
        under_way = 0.0 if self._flow is None else self._flows.left(self._flow)
        return round(self._size - self._rest - under_way)

    def repace(self, schedule: Sequence[Piece]) -> None:
        """Set another schedule for the rest. If the schedule is too short, its last rate is kept until the end."""
        if self._flow is not None:
            self._rest += self._flows.stop(self._flow)
            self._flow = None
        self._generation += 1
        self._await(list(schedule), self._generation)

    def _await(self, pieces: list[Piece], generation: int) -> None:
        if pieces and pieces[0].start > self._engine.now:
            self._engine.at(pieces[0].start, lambda: self._send(pieces, generation))
        else:
            self._send(pieces, generation)

    def _send(self, pieces: list[Piece], generation: int) -> None:
        if generation != self._generation:
            return
        size, limit = self._rest, math.inf
        if pieces:
            start, end, limit = pieces.pop(0)
            size = min(size, limit * (end - start)) if pieces else size
        self._rest -= size
        self._flow = self._flows.start(*self._ends, size, lambda: self._sent(pieces, generation), limit)

    def _sent(self, pieces: list[Piece], generation: int) -> None:
        if generation != self._generation:
            return
        self._flow = None
        if self._rest > ROUNDING:
            self._await(pieces, generation)
        else:
            self._done()


class Flows:
    """All flows of a network.

    :param rates: rates of every host, bytes per second out and in.
    """

    def __init__(self, engine: Engine, rates: Sequence[tuple[float, float]]) -> None:
        self._links = Links(engine, _ways(rates))

    def start(self, source: int, target: int, size: float, done: Action, limit: float = math.inf) -> Flow:
        """Start a flow. ``done`` is called when it is complete: in the next event if it stays within a host."""
        path = () if source == target else (2 * source, 2 * target + 1)
        return self._links.start(path, size, done, limit)

    def left(self, flow: Flow) -> float:
        """Return the bytes of a flow that are not sent yet; 0 if it is complete."""
        return self._links.left(flow)

    def stop(self, flow: Flow) -> float:
        """Stop a flow. Return the bytes that were not sent."""
        return self._links.stop(flow)

    def change(self, rates: Sequence[tuple[float, float]]) -> None:
        """Set new rates of the links."""
        self._links.change(_ways(rates))


def _ways(rates: Sequence[tuple[float, float]]) -> list[float]:
    return [rate for pair in rates for rate in pair]
