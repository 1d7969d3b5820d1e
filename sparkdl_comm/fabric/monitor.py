"""Network monitor of one daemon. Every 0.1 s it reports NIC traffic and transfer progress to the scheduler.

``bandwidth.py`` derives the links' bandwidth from the reports of all hosts, at the scheduler. A single host cannot: a
slow transfer does not show which of its two ends is slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sparkdl_comm.fabric.counters import ByteCounters
from sparkdl_comm.fabric.protocol import Flow, Rates
from sparkdl_comm.fabric.sender import OutgoingTransfer, TransferProgress
from sparkdl_comm.gang.frames import Clock

#: Seconds between two reports. A change of rate shows in the second report after it at the latest.
INTERVAL = 0.1
#: Progress in bytes below which a transfer is not reported until it ends: a single lost packet could explain it.
_FEW = 16 * 1024


class Monitor:
    """Thread that reports traffic at a fixed interval. While nothing moves it reports nothing.

    :param active: returns the transfers that the daemon is sending, or has sent since the last call.
    :param report: receives each report.
    """

    def __init__(
        self,
        counters: ByteCounters,
        active: Callable[[], list[OutgoingTransfer]],
        report: Callable[[Rates], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self._counters, self._active, self._report, self._clock = counters, active, report, clock
        self._last = clock()
        self._counted = counters.read()
        self._before: dict[int, TransferProgress] = {}
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
        """Return what happened since the last call."""
        now, counted = self._clock(), self._counters.read()
        seconds = max(now - self._last, 1e-9)
        flows, seen = [], {}
        for transfer in self._active():
            number, progress = transfer.header.id, transfer.progress
            before = self._before.get(number, TransferProgress())
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
        # A NIC that was removed and added again counts from 0.
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
