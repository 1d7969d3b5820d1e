"""Network monitor of one daemon. Every 0.1 s it reports NIC traffic, as the operating system counts it, and transfer
progress to the scheduler.

``bandwidth.py`` derives the links' bandwidth from the reports of all hosts, at the scheduler. A single host cannot: a
slow transfer does not show which of its two ends is slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from sparkdl_comm.fabric.protocol import Flow, Rates
from sparkdl_comm.fabric.sender import OutgoingTransfer, TransferProgress
from sparkdl_comm.gang.frames import Clock

#: Directory in which Linux publishes the counters of each NIC.
_STATISTICS = Path("/sys/class/net")
#: Seconds between two reports. A change of rate shows in the second report after it at the latest.
INTERVAL_SECONDS = 0.1
#: Progress in bytes below which a transfer is not reported until it ends: a single lost packet could explain it.
_MIN_PROGRESS_BYTES = 16 * 1024


class ByteCounts(NamedTuple):
    """Bytes since the system started: ``up`` sent, ``down`` received."""

    up: int
    down: int


class InterfaceCounters:
    """Summed counters of the NICs that have the given addresses. They cover the traffic of all processes.

    A NIC with several of the addresses counts once. A NIC that has disappeared counts with its last values.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        interfaces = psutil.net_if_addrs().items()
        self._nics = sorted({nic for nic, assigned in interfaces if any(a.address in addresses for a in assigned)})
        self._last_values: dict[Path, int] = {}

    def read(self) -> ByteCounts:
        return ByteCounts(self._sum("tx_bytes"), self._sum("rx_bytes"))

    @property
    def speed(self) -> float:
        """Bytes per second of the links, in each direction; 0 if the system does not know."""
        stats = psutil.net_if_stats()
        speeds = [stats[nic].speed for nic in self._nics if nic in stats]
        return sum(speeds) * 1e6 / 8 if speeds and all(speeds) else 0.0

    def _sum(self, name: str) -> int:
        paths = [_STATISTICS / nic / "statistics" / name for nic in self._nics]
        for path in paths:
            with suppress(OSError):
                self._last_values[path] = int(path.read_text())
        return sum(self._last_values.get(path, 0) for path in paths)


class Monitor:
    """Thread that reports traffic at a fixed interval. While nothing moves it reports nothing.

    :param active: returns the transfers that the daemon is sending, or has sent since the last call.
    :param report: receives each report.
    """

    def __init__(
        self,
        counters: InterfaceCounters,
        active: Callable[[], list[OutgoingTransfer]],
        report: Callable[[Rates], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self._counters, self._active, self._report, self._clock = counters, active, report, clock
        self._last_time = clock()
        self._last_counts = counters.read()
        self._last_progress: dict[int, TransferProgress] = {}
        self._was_idle = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkdl-fabric-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(INTERVAL_SECONDS * 10)

    def measure(self) -> Rates:
        """Return the host's traffic since the last call of this method."""
        now, counts = self._clock(), self._counters.read()
        seconds = max(now - self._last_time, 1e-9)
        flows, current_progress = [], {}
        for transfer in self._active():
            number, progress = transfer.header.id, transfer.progress
            before = self._last_progress.get(number, TransferProgress())
            if progress.sent_bytes - before.sent_bytes < _MIN_PROGRESS_BYTES and progress.sent_bytes < len(
                transfer.data
            ):
                current_progress[number] = before
                continue
            current_progress[number] = progress
            end = min(progress.last_measured, now)
            active = end - max(progress.first_due, before.last_measured)
            if progress.sent_bytes > before.sent_bytes and active > 0:
                held_share = (progress.held_seconds - before.held_seconds) / active / len(transfer.addresses)
                flows.append(
                    Flow(
                        number,
                        active,
                        progress.sent_bytes - before.sent_bytes,
                        min(1.0, held_share),
                        progress.sent_bytes,
                        now - end,
                    )
                )
        # A NIC that was removed and added again counts from 0.
        up, down = max(0, counts.up - self._last_counts.up), max(0, counts.down - self._last_counts.down)
        self._last_time, self._last_counts, self._last_progress = now, counts, current_progress
        return Rates(seconds, up, down, self._counters.speed, flows)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            rates = self.measure()
            has_traffic = bool(rates.flows) or rates.up > 0 or rates.down > 0
            if has_traffic or not self._was_idle:
                self._report(rates)
            self._was_idle = not has_traffic
