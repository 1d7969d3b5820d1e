"""The network monitor of one daemon: every tenth of a second it tells the scheduler what the NICs and its transfers did.

What that means for the links, ``bandwidth.py`` works out at the scheduler, who hears all hosts: a slow transfer alone does
not say which of its two ends is slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sparkdl_comm.fabric.counters import Counters
from sparkdl_comm.fabric.protocol import Flow, Rates
from sparkdl_comm.fabric.sender import Outgoing, Progress
from sparkdl_comm.gang.frames import Clock

#: Seconds between two reports. A change of rate shows in the second report after it at the latest.
INTERVAL = 0.1
#: Bytes of a transfer of which nothing is told until there are more, or it has ended: one packet may have been lost.
_FEW = 16 * 1024


class Monitor:
    """``active``: the transfers that the daemon sends, or sent since the last call. ``report`` gets what was seen; nothing,
    while nothing moves."""

    def __init__(
        self,
        counters: Counters,
        active: Callable[[], list[Outgoing]],
        report: Callable[[Rates], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self._counters, self._active, self._report, self._clock = counters, active, report, clock
        self._last = clock()
        self._counted = counters.read()
        self._before: dict[int, Progress] = {}
        self._quiet = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkdl-fabric-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(INTERVAL * 10)

    def look(self) -> Rates:
        """What was seen since the last call."""
        now, counted = self._clock(), self._counters.read()
        seconds = max(now - self._last, 1e-9)
        flows, seen = [], {}
        for transfer in self._active():
            number, progress = transfer.header.id, transfer.progress
            before = self._before.get(number, Progress())
            if progress.sent - before.sent < _FEW and progress.sent < len(transfer.data):
                seen[number] = before
                continue
            seen[number] = progress
            end = min(progress.last, now)
            active = end - max(progress.begun, before.last)
            if progress.sent > before.sent and active > 0:
                held = (progress.held - before.held) / active / len(transfer.addresses)
                flows.append(
                    Flow(number, active, progress.sent - before.sent, min(1.0, held), progress.sent, now - end)
                )
        # A NIC that has come back counts from 0.
        up, down = max(0, counted.up - self._counted.up), max(0, counted.down - self._counted.down)
        self._last, self._counted, self._before = now, counted, seen
        return Rates(seconds, up, down, self._counters.speed, flows)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            rates = self.look()
            moved = bool(rates.flows) or rates.up > 0 or rates.down > 0
            if moved or not self._quiet:
                self._report(rates)
            self._quiet = not moved
