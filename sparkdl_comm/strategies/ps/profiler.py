"""What a rank measures of its layers and of the network, for the planner of buckets."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Clock = Callable[[], float]

#: New buckets take effect after one iteration for pulls, after two for pushes. Windows that are no longer than this cannot
#: time them.
_SETTLING = 2


class LayerTimes:
    """A stopwatch that is always at one layer, or stopped. Keeps the last ``window`` rounds."""

    def __init__(self, layers: int, window: int, clock: Clock) -> None:
        self._layers, self._clock = layers, clock
        self._rounds: deque[list[float]] = deque(maxlen=window)
        self._round = [0.0] * layers
        self._since = 0.0
        self._layer: int | None = None

    def begin(self) -> None:
        """A round begins; its time counts for no layer yet."""
        self._round = [0.0] * self._layers
        self._layer = None
        self._since = self._clock()

    def stop(self) -> None:
        """The time that went by counts for the current layer; what comes counts for none, until :meth:`at`."""
        if self._layer is not None:
            self._round[self._layer] += self._clock() - self._since
        self._layer = None

    def at(self, layer: int) -> None:
        """The time from now on counts for ``layer``."""
        self.stop()
        self._layer, self._since = layer, self._clock()

    def was(self, layer: int) -> None:
        """The time since the last call counts for ``layer``."""
        now = self._clock()
        self._round[layer] += now - self._since
        self._since = now

    def skip(self) -> None:
        """The time since the last call counts for no layer."""
        self._since = self._clock()

    def end(self) -> None:
        self.stop()
        self._rounds.append(self._round)

    def medians(self) -> list[float] | None:
        """The median seconds of each layer; None if there was no round."""
        return [statistics.median(times) for times in zip(*self._rounds, strict=True)] if self._rounds else None


class NetworkTimes:
    """Measures transfers, in the last ``window`` steps.

    Buckets travel at the same time: one is asked for while the one before still comes. So the transfer time of a step is
    the time in which anything came, and only a bucket that found the network idle shows what a start-up takes. Two blocks of
    one server show no more of the gap between start-ups than what lies between their first bytes, so the least of that counts.
    """

    def __init__(self, window: int) -> None:
        self._startups: deque[float] = deque(maxlen=window)
        self._per_byte: deque[float] = deque(maxlen=window)
        self._gaps: deque[float] = deque(maxlen=window)
        self._sums: deque[float] = deque(maxlen=window)
        self._buckets: list[Sequence[Sequence[float]]] = []
        self._summing = 0.0

    def summed(self, begin: float, end: float) -> None:
        """A bucket was added up."""
        self._summing += end - begin

    def add(self, buckets: Iterable[Sequence[Sequence[float]]]) -> None:
        """``buckets``: the blocks of each, as the executor reports them: from, asked, begun, ended, bytes.

        Blocks that came inside of their notices, which nobody asked for, say nothing of what a fetch takes."""
        fetched = ([block for block in bucket if block[2] > block[1]] for bucket in buckets)
        self._buckets.extend(blocks for blocks in fetched if blocks)

    def end(self) -> None:
        """All buckets of a step were added."""
        self._sums.append(self._summing)
        self._summing = 0.0
        if not self._buckets:
            return
        startups, idle_from = [], float("-inf")
        for blocks in self._buckets:
            _, asked, begun, _, _ = min(blocks, key=lambda block: block[2])
            if asked >= idle_from:
                startups.append(begun - asked)
            idle_from = max(idle_from, *(block[3] for block in blocks))
        blocks = [block for bucket in self._buckets for block in bucket]
        self._startups.append(statistics.median(startups))
        self._gaps.extend(_least_gap(blocks))
        self._per_byte.append(_union([(block[2], block[3]) for block in blocks]) / sum(block[4] for block in blocks))
        self._buckets = []

    def medians(self) -> dict[str, float] | None:
        """What DirectionProfile.scala has of the network, and ``sum``; None if nothing came."""
        if not self._per_byte:
            return None
        startup = statistics.median(self._startups)
        found = {
            "startup": startup,
            "per_byte": statistics.median(self._per_byte),
            "sum": statistics.median(self._sums),
        }
        return found | ({"gap": min(startup, statistics.median(self._gaps))} if self._gaps else {})


def _least_gap(blocks: Sequence[Sequence[float]]) -> list[float]:
    """Between the first bytes of two blocks of one server, of which the second was asked for before the first began; empty if
    there are no such two."""
    of_each: dict[float, list[Sequence[float]]] = {}
    for block in sorted(blocks, key=lambda block: block[2]):
        of_each.setdefault(block[0], []).append(block)
    pairs = [pair for blocks_of_one in of_each.values() for pair in itertools.pairwise(blocks_of_one)]
    gaps = [later[2] - first[2] for first, later in pairs if later[1] <= first[2]]
    return [min(gaps)] if gaps else []


def _union(spans: list[tuple[float, float]]) -> float:
    """Seconds in at least one of the spans."""
    total, end = 0.0, float("-inf")
    for begin, stop in sorted(spans):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total


class Profiler:
    """One rank's measurements. ``window``: steps that the medians are over."""

    def __init__(self, layers: int, window: int, clock: Clock = time.perf_counter) -> None:
        self.forward = LayerTimes(layers, window, clock)
        self.backward = LayerTimes(layers, window, clock)
        self.pulls = NetworkTimes(window)
        self.pushes = NetworkTimes(window)
        self._clock = clock
        self._updates: deque[float] = deque(maxlen=window)
        self._updated = 0.0
        self._began: float | None = None
        self._iterations: deque[float] = deque(maxlen=max(0, window - _SETTLING))

    def iteration(self, updated: float) -> None:
        """An iteration begins, and the one before it has ended. ``updated``: seconds in the optimizer so far, of all."""
        now = self._clock()
        if self._began is not None:
            self._iterations.append(now - self._began)
            self._updates.append(updated - self._updated)
        self._began, self._updated = now, updated

    def report(self) -> dict[str, Any]:
        """What RankReport.scala says, JSON-able; None: not measured."""
        pull, push = _profile(self.forward, self.pulls), _profile(self.backward, self.pushes)
        if push is not None and self._updates:
            push["update"] = statistics.median(self._updates)
        seconds = statistics.median(self._iterations) if self._iterations else None
        return {"pull": pull, "push": push, "seconds": seconds}


def _profile(layers: LayerTimes, network: NetworkTimes) -> dict[str, Any] | None:
    """As DirectionProfile.scala has it."""
    compute, times = layers.medians(), network.medians()
    if compute is None or times is None:
        return None
    return {"compute": compute, "gap": None, "update": 0.0, **times}
