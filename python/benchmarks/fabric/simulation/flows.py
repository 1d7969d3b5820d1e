"""Transfers between hosts in virtual time. Each NIC has a rate out and a rate in; the network core has no congestion."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sparkdl_comm.fabric.core.messages import Piece
from sparkdl_comm.sim.engine import ROUNDING, Action, Engine, Flow, Links


def capacities(rates: Iterable[tuple[float, float]]) -> list[float]:
    """Return the capacities of all links from the rates of every host, bytes per second out and in."""
    return [rate for pair in rates for rate in pair]


def path(source: int, target: int) -> tuple[int, ...]:
    """Return the links from host to host; none within a host."""
    return () if source == target else (2 * source, 2 * target + 1)


class Paced:
    """Paced transfer of ``size`` bytes over the links of ``path``. It calls ``done`` when all bytes have arrived.

    Its pieces are sent in order, none before its start time, none above its rate.
    """

    def __init__(
        self,
        engine: Engine,
        links: Links,
        path: tuple[int, ...],
        size: int,
        schedule: Sequence[Piece],
        done: Action,
    ) -> None:
        self._engine, self._links, self._path, self._size, self._done = engine, links, path, size, done
        #: Bytes not yet given to a flow.
        self._rest = float(size)
        self._flow: Flow | None = None
        self._generation = 0
        self.repace(schedule)

    @property
    def sent(self) -> int:
        """Bytes sent so far."""
        under_way = 0.0 if self._flow is None else self._links.left(self._flow)
        return round(self._size - self._rest - under_way)

    def repace(self, schedule: Sequence[Piece]) -> None:
        """Set another schedule for the rest. If the schedule is too short, its last rate is kept until the end."""
        if self._flow is not None:
            self._rest += self._links.stop(self._flow)
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
        self._flow = self._links.start(self._path, size, lambda: self._sent(pieces, generation), limit)

    def _sent(self, pieces: list[Piece], generation: int) -> None:
        if generation != self._generation:
            return
        self._flow = None
        if self._rest > ROUNDING:
            self._await(pieces, generation)
        else:
            self._done()
