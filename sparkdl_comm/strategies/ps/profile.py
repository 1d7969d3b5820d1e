"""What a rank measures of its layers and of the network, for the planner of batches."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Clock = Callable[[], float]

#: Iterations after which batches that were changed are all in use: pulls with the next one, pushes with the one after it. Who
#: looks after no more than these learns nothing of what an iteration takes.
_SETTLING = 2


@dataclass(frozen=True)
class Direction:
    """Of pulls and forward, or of pushes and backward.

    ``compute``: seconds of each layer; ``startup``: seconds from the request of a batch to its first byte;
    ``per_byte``: seconds of transfer for each byte that this rank receives.
    """

    compute: list[float]
    startup: float
    per_byte: float


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
        """What went by counts for the layer that it is at; what comes, for none, until it is set again."""
        if self._layer is not None:
            self._round[self._layer] += self._clock() - self._since
        self._layer = None

    def at(self, layer: int) -> None:
        """What comes counts for `layer`."""
        self.stop()
        self._layer, self._since = layer, self._clock()

    def was(self, layer: int) -> None:
        """What went by, since the last call, counts for `layer`."""
        now = self._clock()
        self._round[layer] += now - self._since
        self._since = now

    def skip(self) -> None:
        """What went by, since the last call, counts for none."""
        self._since = self._clock()

    def end(self) -> None:
        self.stop()
        self._rounds.append(self._round)

    def medians(self) -> list[float] | None:
        """Of each layer; None if there was no round."""
        return [statistics.median(times) for times in zip(*self._rounds, strict=True)] if self._rounds else None


class NetworkTimes:
    """What communications took, in the last ``window`` steps.

    Batches travel at the same time: one is asked for while the one before still comes. So the transfer time of a step is that
    in which anything came, and only a batch that found the network idle shows what a start-up takes.
    """

    def __init__(self, window: int) -> None:
        self._startups: deque[float] = deque(maxlen=window)
        self._per_byte: deque[float] = deque(maxlen=window)
        self._batches: list[Sequence[Sequence[float]]] = []

    def add(self, batches: Iterable[Sequence[Sequence[float]]]) -> None:
        """`batches`: of each, its blocks as the executor reports them: from, asked, begun, ended, bytes.

        Blocks that came with their notices, which nobody asked for, say nothing of what a fetch takes."""
        fetched = ([block for block in batch if block[2] > block[1]] for batch in batches)
        self._batches.extend(blocks for blocks in fetched if blocks)

    def end(self) -> None:
        """All batches of a step were added."""
        if not self._batches:
            return
        startups, idle_from = [], float("-inf")
        for blocks in self._batches:
            _, asked, begun, _, _ = min(blocks, key=lambda block: block[2])
            if asked >= idle_from:
                startups.append(begun - asked)
            idle_from = max(idle_from, *(block[3] for block in blocks))
        blocks = [block for batch in self._batches for block in batch]
        self._startups.append(statistics.median(startups))
        self._per_byte.append(_union([(block[2], block[3]) for block in blocks]) / sum(block[4] for block in blocks))
        self._batches = []

    def medians(self) -> tuple[float, float] | None:
        """Start-up, and time per byte; None if nothing came."""
        if not self._per_byte:
            return None
        return statistics.median(self._startups), statistics.median(self._per_byte)


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
        self._began: float | None = None
        self._iterations: deque[float] = deque(maxlen=max(0, window - _SETTLING))

    def iteration(self) -> None:
        """One begins, and the one before it ended."""
        now = self._clock()
        if self._began is not None:
            self._iterations.append(now - self._began)
        self._began = now

    def report(self) -> dict[str, Any]:
        """For :func:`agree` and :func:`agreed_seconds`; JSON-able."""
        found: dict[str, Any] = {}
        if self._iterations:
            found["seconds"] = statistics.median(self._iterations)
        for name, layers, network in (("pull", self.forward, self.pulls), ("push", self.backward, self.pushes)):
            compute, times = layers.medians(), network.medians()
            if compute is not None and times is not None:
                found[name] = asdict(Direction(compute, *times))
        return found


def agree(reports: Sequence[dict[str, Any]], name: str) -> Direction | None:
    """The median over the ranks, of `name`, ``pull`` or ``push``; None unless a rank measured it.

    Every rank gets the same, to the bit, from the same reports.
    """
    found = [Direction(**report[name]) for report in reports if name in report]
    if not found:
        return None
    return Direction(
        [statistics.median(times) for times in zip(*(direction.compute for direction in found), strict=True)],
        statistics.median(direction.startup for direction in found),
        statistics.median(direction.per_byte for direction in found),
    )


def agreed_seconds(reports: Sequence[dict[str, Any]]) -> float | None:
    """Of an iteration: the median over the ranks that measured some; likewise the same on every rank."""
    found = [report["seconds"] for report in reports if "seconds" in report]
    return statistics.median(found) if found else None


def drift(before: Direction, now: Direction) -> float:
    """The largest change of what decides about batches: all computation, a start-up, a transfer. Relative to before."""
    pairs = (
        (sum(before.compute), sum(now.compute)),
        (before.startup, now.startup),
        (before.per_byte, now.per_byte),
    )
    return max(abs(new - old) / old if old else float(new > 0) for old, new in pairs)
