"""Monitor reports of all daemons, combined as input of :mod:`sparkdl_comm.fabric.bandwidth`."""

from __future__ import annotations

from collections.abc import Mapping

from sparkdl_comm.fabric.bandwidth import Bandwidths, Sample
from sparkdl_comm.fabric.core import events
from sparkdl_comm.fabric.core.roles import Node
from sparkdl_comm.fabric.directory import Directory
from sparkdl_comm.fabric.protocol import Rates, course_of
from sparkdl_comm.fabric.scheduling_session import SchedulingSession

#: Seconds after its end during which a transfer can still appear in its sender's report.
_REPORTED = 1.0


class LinkStats:
    """Bandwidth estimates from the daemons' reports. ``link``: bytes per second, as in the options."""

    def __init__(self, directory: Directory, link: float) -> None:
        self._directory = directory
        self._bandwidths = Bandwidths(len(directory.hosts), link)
        #: Recently ended transfers: the host of each target, and when it ended.
        self._ended: dict[int, tuple[int, float]] = {}

    def bandwidths(self, now: float) -> dict[int, tuple[float, float]]:
        """Return the bandwidth of every host: bytes per second sent and received."""
        self._ended = {number: end for number, end in self._ended.items() if now - end[1] <= _REPORTED}
        return self._bandwidths.told()

    def ended(self, transfer: int, node: Node, now: float) -> None:
        """Record that a transfer has ended at the node."""
        self._ended[transfer] = self._directory.host(node), now

    def take(self, node: Node, rates: Rates, courses: Mapping[int, SchedulingSession], now: float) -> None:
        """Evaluate the report of a node's daemon, and pass the progress of transfers to their courses."""
        samples = []
        for flow in rates.flows:
            number, transfer = course_of(flow.transfer)
            course = courses.get(number)
            target = None if course is None else course.target(transfer)
            if course is not None and target is not None:
                receiving = self._directory.host(target)
                course.observe(events.TransferProgressed(transfer, flow.total), now)
            elif flow.transfer in self._ended:
                receiving, _ = self._ended[flow.transfer]
            else:
                continue
            samples.append(Sample(receiving, flow.seconds, flow.sent, flow.held, flow.total, flow.ago))
        host = self._directory.host(node)
        self._bandwidths.limit(host, rates.speed)
        self._bandwidths.observe(host, rates.seconds, rates.up, rates.down, samples, now)
