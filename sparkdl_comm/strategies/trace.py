"""What a rank did and when, in its last iterations; see sparkdl_comm.report.timeline for what is made of it.

Times are seconds of the rank's ``time.perf_counter``, which on Linux is the machine's monotonic clock: the executor's JVM
has the same one, and so have all ranks of a machine. Between machines it differs, see :func:`read_clocks`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.space.layer_buckets import LayerBuckets

#: Exchanges by which clocks of several machines are compared: the quickest counts.
_CLOCK_ROUNDS = 8


class Trace:
    """Keeps the last ``limit`` iterations."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._limit = limit
        #: The number of the iteration that goes on.
        self.current = 0
        self._spans: dict[int, list[dict[str, Any]]] = {}

    def iteration(self, number: int) -> None:
        """What comes belongs to this iteration, counted from 1, unless it is said to belong to another."""
        self.current = number
        for old in [known for known in self._spans if known <= number - self._limit]:
            del self._spans[old]

    def add(self, name: str, begin: float, end: float, iteration: int | None = None, **about: Any) -> None:
        """Something that went on from ``begin`` to ``end``. ``about``: JSON-able; ``batch`` if it was a batch of layers."""
        spans = self._spans.setdefault(self.current if iteration is None else iteration, [])
        spans.append({"name": name, "begin": begin, "end": end, **about})

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Around something that is done in the current iteration, on whatever thread."""
        begin = self.clock()
        yield
        self.add(name, begin, self.clock())

    def report(self, gang: Gang, timeout: float, parameter_bytes: int) -> dict[str, Any]:
        """Return what :class:`sparkdl_comm.report.timeline.Timeline` is made of, JSON-able. All ranks call it.

        :param parameter_bytes: of the model, as float32.
        """
        begun = [number for number in sorted(self._spans) if 0 < number <= self.current]
        iterations = [{"iteration": number, "spans": self._spans[number]} for number in begun]
        clocks = read_clocks(gang, timeout, self.clock)
        return {"clocks": clocks, "parameter_bytes": parameter_bytes, "iterations": iterations}


class BatchTrace:
    """What a rank of the parameter server did batch by batch. Costs nothing without a trace."""

    def __init__(self, trace: Trace | None) -> None:
        self._trace = trace
        #: Whether the last iteration is over: parameters that come are for the next one.
        self.between = False
        self._since = 0.0
        self._next = 0
        self._cut: LayerBuckets | None = None

    def begin(self, cut: LayerBuckets) -> None:
        """A pass through the layers of all batches begins."""
        self._cut, self._next = cut, 0
        self.go_on()

    def go_on(self) -> None:
        """The pass waited until now."""
        if self._trace is not None:
            self._since = self._trace.clock()

    def done(self, name: str, batch: int) -> None:
        """The pass, if one is going on, has just computed all batches before number ``batch``. It ends with the last one."""
        if self._trace is None or self._cut is None or batch <= self._next:
            return
        now = self._trace.clock()
        pairs = self._cut.pairs[self._next : batch]
        layers = [min(first for first, _ in pairs), max(last for _, last in pairs)]
        self._trace.add(name, self._since, now, batch=batch - 1, layers=layers)
        self._since, self._next = now, batch
        if batch == len(self._cut):
            self._cut = None

    @contextlib.contextmanager
    def one(self, name: str, cut: LayerBuckets, batch: int) -> Iterator[None]:
        """Around what is done with one batch, whatever pass is going on."""
        begin = 0.0 if self._trace is None else self._trace.clock()
        yield
        if self._trace is not None:
            self._trace.add(name, begin, self._trace.clock(), batch=batch, layers=cut.pairs[batch])

    def came(self, name: str, cut: LayerBuckets, first: int, batches: Sequence[Sequence[Sequence[float]]]) -> None:
        """Batches from number ``first`` on came from other executors, in blocks as the executor reports them."""
        if self._trace is None:
            return
        for batch, blocks in enumerate(batches, first):
            if blocks:
                senders, asked, begun, ended, count = zip(*blocks, strict=True)
                about = {"layers": cut.pairs[batch], "bytes": sum(count), "from": senders}
                about |= {"startup": min(begun) - min(asked), "iteration": self._trace.current + self.between}
                self._trace.add(name, min(begun), max(ended), batch=batch, **about)

    def collected(self, cut: LayerBuckets, batch: int, answer: Mapping[str, Any]) -> None:
        """The executor has the sum of all ranks' gradients of a batch; ``answer``: its own to ``collect``."""
        if self._trace is not None:
            self.came("push batch", cut, batch, answer["batches"])
            begin, end = answer["sum"]
            self._trace.add("aggregate batch", begin, end, batch=batch, layers=cut.pairs[batch])


def read_clocks(gang: Gang, timeout: float, clock: Callable[[], float] = time.perf_counter) -> dict[str, Any]:
    """What :func:`offset` needs: this machine's ``boot``, and of some exchanges between all ranks, when this rank ``sent``
    its part and when it had ``received`` all."""
    sent, received = [], []
    for _ in range(_CLOCK_ROUNDS):
        sent.append(clock())
        gather_json(gang, None, timeout)
        received.append(clock())
    return {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "sent": sent, "received": received}


def offset(own: dict[str, Any], other: dict[str, Any]) -> tuple[float, float]:
    """By how much ``own`` clock is ahead of the ``other``, and how much that may be wrong; seconds.

    Nobody has received an exchange before everybody sent his part of it, which bounds the difference from both sides. Ranks
    of one machine have one clock.
    """
    if own["boot"] == other["boot"]:
        return 0.0, 0.0
    least = max(sent - received for sent, received in zip(own["sent"], other["received"], strict=True))
    most = min(received - sent for received, sent in zip(own["received"], other["sent"], strict=True))
    return (least + most) / 2, (most - least) / 2
