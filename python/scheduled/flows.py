"""Transfers between hosts. Each host's NIC has a rate out and a rate in, and the network core has no congestion.

A flow may have a rate limit, by which a pacing sender keeps to its schedule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparkdl_comm.sim.engine import Action, Engine
from sparkdl_comm.sim.links import Flow, Links


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
