"""Byte counters that the operating system keeps for a host's NICs. They cover the traffic of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

#: Directory in which Linux publishes the counters of each NIC.
_STATISTICS = Path("/sys/class/net")


class ByteCounts(NamedTuple):
    """Bytes since the system started: ``up`` sent, ``down`` received."""

    up: int
    down: int


class ByteCounters(Protocol):
    """Source of NIC byte counts."""

    def read(self) -> ByteCounts: ...

    @property
    def speed(self) -> float:
        """Bytes per second of the links, in each direction; 0 if the system does not know."""


class InterfaceCounters:
    """Summed counters of the NICs that have the given addresses.

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
        stats = psutil.net_if_stats()
        speeds = [stats[nic].speed for nic in self._nics if nic in stats]
        return sum(speeds) * 1e6 / 8 if speeds and all(speeds) else 0.0

    def _sum(self, name: str) -> int:
        paths = [_STATISTICS / nic / "statistics" / name for nic in self._nics]
        for path in paths:
            with suppress(OSError):
                self._last_values[path] = int(path.read_text())
        return sum(self._last_values.get(path, 0) for path in paths)
