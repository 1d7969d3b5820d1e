"""Virtual time: events in their order, and links that transfers share.

The earliest event is next. Events at the same time keep the order of their creation.

Transfers are fluids: each gets its max-min fair share of its links, up to its own limit. When a transfer starts or ends, rates
change only among transfers that share links with it, directly or through others. In a network without congestion these are
few, so an event costs no more on a thousand hosts than on ten.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count

Action = Callable[[], None]


class Engine:
    """Queue of events. ``now``: virtual seconds since the beginning."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Action]] = []
        self._numbers = count()
        self._stopped = False

    def at(self, time: float, action: Action) -> None:
        """Schedule ``action`` for this time, or for now if the time has passed."""
        heapq.heappush(self._events, (max(time, self.now), next(self._numbers), action))

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def stop(self) -> None:
        """End :meth:`run` after the current event."""
        self._stopped = True

    def run(self, until: float) -> None:
        """Run all events before ``until``, or until :meth:`stop`."""
        while self._events and not self._stopped and self._events[0][0] < until:
            self.now, _, action = heapq.heappop(self._events)
            action()


#: Bytes below which a transfer counts as complete: the error of sums of floats.
ROUNDING = 1e-3


class Flow:
    """Transfer of ``size`` bytes over the links of ``path``. ``rate``: its current rate, bytes per second."""

    __slots__ = ("generation", "left", "limit", "on_done", "path", "rate", "since", "size")

    def __init__(self, path: tuple[int, ...], size: float, limit: float, on_done: Action) -> None:
        self.path, self.size, self.limit, self.on_done = path, size, limit, on_done
        #: Unsent bytes at the time ``since``, when the rate last changed.
        self.left, self.since = size, 0.0
        self.rate = 0.0
        self.generation = 0


class Links:
    """All links of a network.

    :param capacities: rate of every link, bytes per second.
    """

    def __init__(self, engine: Engine, capacities: Iterable[float]) -> None:
        self._engine = engine
        self._capacities = list(capacities)
        self._users: list[dict[Flow, None]] = [{} for _ in self._capacities]
        #: Bytes over each link, of flows that have ended.
        self.carried = [0.0] * len(self._capacities)

    def start(self, path: tuple[int, ...], size: float, on_done: Action, limit: float = math.inf) -> Flow:
        """Start a flow. ``on_done`` is called when it is complete: in the next event if it uses no link."""
        flow = Flow(path, size, limit, on_done)
        if not path or size <= ROUNDING:
            flow.left = 0.0
            self._engine.after(0.0, on_done)
            return flow
        for link in path:
            self._users[link][flow] = None
        self._share(path)
        return flow

    def left(self, flow: Flow) -> float:
        """Return the bytes of a flow that are not sent yet; 0 if it is complete."""
        return max(0.0, flow.left - flow.rate * (self._engine.now - flow.since))

    def stop(self, flow: Flow) -> float:
        """Stop a flow. Return the bytes that were not sent."""
        left = self.left(flow)
        if left:
            self._end(flow, left)
        return left

    def change(self, capacities: Iterable[float]) -> None:
        """Set new capacities of the links."""
        self._capacities = list(capacities)
        self._share(range(len(self._capacities)))

    def _end(self, flow: Flow, left: float) -> None:
        flow.left, flow.rate = 0.0, 0.0
        flow.generation += 1
        for link in flow.path:
            del self._users[link][flow]
            self.carried[link] += flow.size - left
        self._share(flow.path)

    def _share(self, links: Iterable[int]) -> None:
        """Set the rates of all flows that a change on these links can affect, and schedule their completion."""
        flows = self._touched(links)
        before = [flow.rate for flow in flows]
        share(flows, self._capacities)
        now = self._engine.now
        for flow, rate in zip(flows, before, strict=True):
            if flow.rate == rate:
                continue
            flow.left = max(0.0, flow.left - rate * (now - flow.since))
            flow.since = now
            flow.generation += 1
            if flow.rate > 0:
                self._engine.after(flow.left / flow.rate, partial(self._complete, flow, flow.generation))

    def _touched(self, links: Iterable[int]) -> list[Flow]:
        todo = list(links)
        seen = set(todo)
        found: dict[Flow, None] = {}
        while todo:
            for flow in self._users[todo.pop()]:
                if flow not in found:
                    found[flow] = None
                    beyond = [link for link in flow.path if link not in seen]
                    seen.update(beyond)
                    todo += beyond
        return list(found)

    def _complete(self, flow: Flow, generation: int) -> None:
        if generation == flow.generation:
            self._end(flow, 0.0)
            flow.on_done()


def share(flows: Sequence[Flow], capacities: Sequence[float]) -> None:
    """Set the flows' rates to their max-min fair shares: raise all rates equally until a link or a limit is reached."""
    if len(flows) == 1:
        flows[0].rate = min(flows[0].limit, *(capacities[link] for link in flows[0].path))
        return
    room: dict[int, float] = {}
    users: dict[int, dict[Flow, None]] = {}
    for flow in flows:
        flow.rate = 0.0
        for link in flow.path:
            room[link] = capacities[link]
            users.setdefault(link, {})[flow] = None
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
            for link in flow.path:
                del users[link][flow]
                room[link] = max(0.0, room[link] - flow.rate)
