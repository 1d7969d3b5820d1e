"""Transfers as fluids that share links: each host's NIC has a rate out and a rate in, and the core has no congestion.

Every flow gets its max-min fair share of both links that it takes, but never more than its own limit, which is how a sender
that paces keeps to its schedule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

from sparkdl_comm.sim.engine import Action, Engine

#: Bytes that may be missing at the end of a flow: what sums of floats are wrong by.
ROUNDING = 1e-3


class Flow:
    """``left``: bytes that are still to be sent. ``rate``: bytes per second now."""

    def __init__(self, source: int, target: int, size: float, limit: float, done: Action) -> None:
        self.source, self.target, self.left, self.limit, self.done = source, target, size, limit, done
        self.rate = 0.0


class Flows:
    """All flows of a network.

    :param rates: of every host, bytes per second out and in.
    """

    def __init__(self, engine: Engine, rates: Sequence[tuple[float, float]]) -> None:
        self._engine = engine
        self._rates = list(rates)
        self._flows: dict[int, Flow] = {}
        self._numbers = count()
        self._settled = engine.now
        self._generation = 0

    def start(self, source: int, target: int, size: float, done: Action, limit: float = math.inf) -> int:
        """Begins a flow. ``done`` is called when it is complete: in the next event, within a host.

        :returns: its number, for :meth:`stop`.
        """
        number = next(self._numbers)
        if source == target or size <= ROUNDING:
            self._engine.after(0.0, done)
            return number
        self._settle()
        self._flows[number] = Flow(source, target, size, limit, done)
        self._share()
        return number

    def left(self, number: int) -> float:
        """Bytes of a flow that are still to be sent; 0 if it is complete."""
        self._settle()
        return self._flows[number].left if number in self._flows else 0.0

    def stop(self, number: int) -> float:
        """Breaks a flow off. Returns what was left of it."""
        self._settle()
        flow = self._flows.pop(number, None)
        if flow is None:
            return 0.0
        self._share()
        return flow.left

    def change(self, rates: Sequence[tuple[float, float]]) -> None:
        """Links have other rates from now on."""
        self._settle()
        self._rates = list(rates)
        self._share()

    def _settle(self) -> None:
        """Brings ``left`` of all flows up to now."""
        seconds = self._engine.now - self._settled
        self._settled = self._engine.now
        if seconds > 0:
            for flow in self._flows.values():
                flow.left = max(0.0, flow.left - flow.rate * seconds)

    def _share(self) -> None:
        """Sets all rates, and the event at which the next flow is complete."""
        share(list(self._flows.values()), self._rates)
        self._generation += 1
        generation = self._generation
        soonest = min((flow.left / flow.rate for flow in self._flows.values() if flow.rate > 0), default=math.inf)
        if soonest < math.inf:
            self._engine.after(soonest, lambda: self._complete(generation))

    def _complete(self, generation: int) -> None:
        if generation != self._generation:
            return
        self._settle()
        # The soonest one may still miss what rounding has taken.
        least = min(flow.left / flow.rate for flow in self._flows.values() if flow.rate > 0)
        complete = [
            number
            for number, flow in self._flows.items()
            if flow.left <= ROUNDING or (flow.rate > 0 and flow.left / flow.rate <= least)
        ]
        done = [self._flows.pop(number).done for number in complete]
        self._share()
        for action in done:
            action()


def share(flows: Sequence[Flow], rates: Sequence[tuple[float, float]]) -> None:
    """Sets the flows' rates to their max-min fair shares, by filling all of them alike until a link or a limit is reached."""
    room = {2 * host + way: pair[way] for host, pair in enumerate(rates) for way in (0, 1)}
    users: dict[int, list[Flow]] = {}
    for flow in flows:
        flow.rate = 0.0
        users.setdefault(2 * flow.source, []).append(flow)
        users.setdefault(2 * flow.target + 1, []).append(flow)
    if all(sum(flow.limit for flow in sharing) <= room[link] for link, sharing in users.items()):
        for flow in flows:
            flow.rate = flow.limit
        return
    waiting = dict.fromkeys(flows)
    while waiting:
        level, narrow = min((room[link] / len(sharing), link) for link, sharing in users.items() if sharing)
        limited = [flow for flow in waiting if flow.limit <= level]
        for flow in limited or list(users[narrow]):
            flow.rate = flow.limit if limited else level
            del waiting[flow]
            for link in (2 * flow.source, 2 * flow.target + 1):
                users[link].remove(flow)
                room[link] = max(0.0, room[link] - flow.rate)
