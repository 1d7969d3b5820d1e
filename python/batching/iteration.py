"""How long an iteration takes with given batches, if everything takes what the profile says.

The planner judges pulls and pushes apart. Here they share the links, an iteration's pulls begin during the backward pass
before, and the next iteration's during its own.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from sparkdl_comm.train.cut import Batches, Countdown

#: Iterations until each takes as long as the one before.
_SETTLE = 8


def iteration_seconds(plans: Mapping[str, Mapping[str, Any]]) -> float:
    """`plans`: of ``pull`` and ``push``, each with its ``batches`` and the ``profile`` (see sparkdl_comm.ps.plan).

    All ranks do the same at the same time, so there is one link, both of whose directions are as busy: transfers under
    way share it. Start-ups follow one another, and cost the link nothing. With one batch for all pulls or pushes, nothing
    of the next version is made before backward is over.
    """
    return _Simulation(plans).run()


class _Simulation:
    def __init__(self, plans: Mapping[str, Mapping[str, Any]]) -> None:
        self._cuts = {name: Batches(plan["batches"]) for name, plan in plans.items()}
        profiles = {name: plan["profile"] for name, plan in plans.items()}
        self._startups = {name: profile["startup"] for name, profile in profiles.items()}
        self._transfers = {
            name: [sum(profiles[name]["transfer"][layer] for layer in layers) for layers in cut.layers]
            for name, cut in self._cuts.items()
        }
        self._forward, self._backward = profiles["pull"]["compute"], profiles["push"]["compute"]
        self._ahead = all(len(cut) > 1 for cut in self._cuts.values())
        self._now = self._starter_free = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._left: dict[tuple[str, int], float] = {}  # of a transfer under way: seconds that it would take alone
        self._here: set[int] = set()
        self._waits_for: int | None = None
        self._sent: list[int] = []
        self._begun: list[float] = []

    def run(self) -> float:
        for batch in range(len(self._cuts["pull"])):
            self._ask("pull", batch)
        self._begin()
        while len(self._begun) < _SETTLE:
            self._advance()
        return self._begun[-1] - self._begun[-2]

    def _advance(self) -> None:
        """To the next event, or to the end of a transfer if that comes first."""
        due = self._events[0][0] if self._events else float("inf")
        shares = len(self._left)
        first = min(self._left, key=lambda transfer: self._left[transfer], default=None)
        if first is not None and self._now + self._left[first] * shares <= due:
            passed = self._left[first]
            self._now += passed * shares
            self._left = {transfer: left - passed for transfer, left in self._left.items() if transfer != first}
            self._arrived(*first)
            return
        self._left = {transfer: left - (due - self._now) / shares for transfer, left in self._left.items()}
        self._now = due
        heapq.heappop(self._events)[2]()

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._count), then))

    def _ask(self, name: str, batch: int) -> None:
        self._starter_free = max(self._now, self._starter_free) + self._startups[name]

        def start() -> None:
            self._left[name, batch] = self._transfers[name][batch]

        self._after(self._starter_free - self._now, start)

    def _arrived(self, name: str, batch: int) -> None:
        if name == "pull":
            self._here.add(batch)
            if self._waits_for is not None:
                self._compute_forward(self._waits_for)
        else:
            self._sent.append(batch)
            if self._passed_backward:
                self._update()

    def _begin(self) -> None:
        self._begun.append(self._now)
        self._passed_backward = False
        self._unpushed = Countdown(self._cuts["push"], range(len(self._backward)))
        self._unpublished = Countdown(self._cuts["pull"], range(len(self._forward)))
        self._updated = 0
        self._compute_forward(0)

    def _compute_forward(self, layer: int) -> None:
        if layer == len(self._forward):
            self._here.clear()
            self._compute_backward(layer - 1)
        elif self._cuts["pull"].of[layer] in self._here:
            self._waits_for = None
            self._after(self._forward[layer], lambda: self._compute_forward(layer + 1))
        else:
            self._waits_for = layer

    def _compute_backward(self, layer: int) -> None:
        def done() -> None:
            complete = self._unpushed.arrived(layer)
            if complete is not None:
                self._ask("push", complete)
            self._passed_backward = layer == 0
            if self._ahead or self._passed_backward:
                self._update()
            if layer:
                self._compute_backward(layer - 1)

        self._after(self._backward[layer], done)

    def _update(self) -> None:
        """What was sent is updated, and pulled; the next iteration begins with the last of it."""
        sent, self._sent = self._sent, []
        for batch in sent:
            complete = [self._unpublished.arrived(layer) for layer in self._cuts["push"].layers[batch]]
            for published in sorted(number for number in complete if number is not None):
                self._ask("pull", published)
        self._updated += len(sent)
        if self._updated == len(self._cuts["push"]):
            self._begin()
