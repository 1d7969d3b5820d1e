"""Monitor reports of all daemons, combined as input of :mod:`sparkdl_comm.fabric.bandwidth`."""

from __future__ import annotations

from collections.abc import Mapping

from sparkdl_comm.fabric.bandwidth import BandwidthEstimator, Sample
from sparkdl_comm.fabric.core import events
from sparkdl_comm.fabric.core.nodes import Node
from sparkdl_comm.fabric.directory import Directory
from sparkdl_comm.fabric.protocol import Rates, unpack_transfer_number
from sparkdl_comm.fabric.scheduling_session import SchedulingSession

#: Seconds after its end during which a transfer can still appear in its sender's report.
_REPORTED_SECONDS = 1.0


class LinkStats:
    """Bandwidth estimates from the daemons' reports. ``link_rate``: bytes per second, as in the options."""

    def __init__(self, directory: Directory, link_rate: float) -> None:
        self._directory = directory
        self._bandwidths = BandwidthEstimator(len(directory.hosts), link_rate)
        #: Recently ended transfers: the host of each target, and when it ended.
        self._recent_ends: dict[int, tuple[int, float]] = {}

    def bandwidths(self, now: float) -> dict[int, tuple[float, float]]:
        """Return the bandwidth of every host: bytes per second sent and received."""
        self._recent_ends = {
            number: end for number, end in self._recent_ends.items() if now - end[1] <= _REPORTED_SECONDS
        }
        return self._bandwidths.get_stable_estimates()

    def record_end(self, transfer: int, node: Node, now: float) -> None:
        """Record that a transfer has ended at the node."""
        self._recent_ends[transfer] = self._directory.host(node), now

    def add_report(self, node: Node, rates: Rates, sessions: Mapping[int, SchedulingSession], now: float) -> None:
        """Evaluate the report of a node's daemon, and pass the progress of transfers to their sessions."""
        samples = []
        for flow in rates.flows:
            number, transfer = unpack_transfer_number(flow.transfer)
            session = sessions.get(number)
            target = None if session is None else session.find_target(transfer)
            if session is not None and target is not None:
                target_host = self._directory.host(target)
                session.observe(events.TransferProgressed(transfer, flow.total), now)
            elif flow.transfer in self._recent_ends:
                target_host, _ = self._recent_ends[flow.transfer]
            else:
                continue
            samples.append(Sample(target_host, flow.seconds, flow.sent, flow.held, flow.total, flow.ago))
        host = self._directory.host(node)
        self._bandwidths.limit(host, rates.speed)
        self._bandwidths.observe(host, rates.seconds, rates.up, rates.down, samples, now)
