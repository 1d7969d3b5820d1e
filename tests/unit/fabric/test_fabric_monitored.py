"""The fabric in virtual time, with a scheduler that knows of links only what ``bandwidth.py`` makes of daemons' reports."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from benchmarks.fabric.conditions import FULL_RATE, Conditions
from benchmarks.fabric.simulation.fabric_run import FabricRun
from benchmarks.fabric.simulation.run import Job, Task

from sparkdl_comm.fabric.bandwidth import PROBE_FACTOR, BandwidthEstimator
from sparkdl_comm.fabric.core.messages import (
    BandwidthReported,
    Decision,
    NewSchedule,
    Node,
    Piece,
    Schedule,
    TransferProgressed,
)
from sparkdl_comm.fabric.monitor import INTERVAL_SECONDS
from sparkdl_comm.fabric.protocol import Flow, Rates

WORKERS = 6
#: A share of the paper's rates and bytes, that of emulated links of 100 Mbit/s.
SCALE = 0.01


@dataclass
class Watched:
    """A transfer, from when it may begin. ``pace``: bytes per second until ``paced``, seconds."""

    source: Node
    hosts: tuple[int, int]
    size: int
    begun: float
    pace: float = 0.0
    paced: float = 0.0
    ended: float | None = None
    told: int = 0
    looked: float = 0.0
    #: Bytes on the NIC of each daemon.
    seen: dict[Node, int] = field(default_factory=dict)


class MonitoredRun(FabricRun):
    """Run whose daemons report at different times, also on transfers that have ended."""

    def _begin(self) -> None:
        self._links = BandwidthEstimator(WORKERS + 1, FULL_RATE * SCALE)
        self._watched: dict[int, Watched] = {}
        self._phases = random.Random(7)
        self.ratios: list[float] = []
        nodes = [Node(role, index) for role in ("worker", "aggregator") for index in range(WORKERS)]
        for node in [*nodes, Node("server", 0)]:
            self._look_later(node)
        super()._begin()

    def _decide(self) -> None:
        for host, true in enumerate(self.job.conditions.rates(int(self.engine.now / self.job.conditions.interval))):
            found = self._links.estimate(host)
            self._observe(BandwidthReported(host, *found))
            self.ratios += [mine / theirs for mine, theirs in zip(found, true, strict=True)]
        super()._decide()

    def _rates_changed(self, rates: Sequence[tuple[float, float]]) -> None:
        """Nobody tells."""

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, NewSchedule) and decision.transfer in self._watched:
                self._pace(self._watched[decision.transfer], decision.schedule)
        super()._carry_out(
            [replace(d, schedule=probing(d.schedule)) if isinstance(d, NewSchedule) else d for d in decisions]
        )

    def _pace(self, watched: Watched, schedule: Schedule) -> None:
        watched.pace = PROBE_FACTOR * max((piece.rate for piece in schedule), default=0.0)
        watched.paced = schedule[-1].end if schedule else self.engine.now

    def _start(self, number: int) -> None:
        transfer = self._transfers[number]
        late = max(0.0, self.engine.now - transfer.schedule[0].start) if transfer.schedule else 0.0
        schedule = tuple(Piece(start + late, end + late, rate) for start, end, rate in transfer.schedule)
        hosts = self._roles.host(transfer.source), self._roles.host(transfer.target)
        begun = schedule[0].start if schedule else self.engine.now
        watched = self._watched[number] = Watched(transfer.source, hosts, transfer.bytes, begun)
        self._pace(watched, schedule)
        self._transfers[number] = replace(transfer, schedule=probing(schedule))
        super()._start(number)

    def _ended(self, number: int) -> None:
        self._watched[number].ended = self.engine.now
        super()._ended(number)

    def _look_later(self, node: Node) -> None:
        begun = self.engine.now
        self.engine.after(INTERVAL_SECONDS * self._phases.uniform(0.9, 1.1), lambda: self._look(node, begun))

    def _look(self, node: Node, last: float) -> None:
        """Report as the monitor of this node's daemon."""
        now, host = self.engine.now, self._roles.host(node)
        passed, flows, targets = [0, 0], [], {number: each.hosts[1] for number, each in self._watched.items()}
        for number, watched in list(self._watched.items()):
            sent = watched.size if watched.ended is not None else self._paced[number].sent
            if host in watched.hosts and watched.hosts[0] != watched.hosts[1]:
                passed[watched.hosts.index(host)] += sent - watched.seen.get(node, 0)
                watched.seen[node] = sent
            if watched.source == node and sent > watched.told:
                end = now if watched.ended is None else watched.ended
                flows.append(self._flow(number, watched, sent, end - max(watched.begun, watched.looked), now - end))
                watched.told, watched.looked = sent, now
                self._observe(TransferProgressed(number, sent))
            if watched.ended is not None and now - watched.ended > 2 * INTERVAL_SECONDS:
                del self._watched[number]
        if flows or any(passed):
            self._links.observe(host, Rates(now - last, *passed, 0.0, flows), targets, now)
        self._look_later(node)

    def _flow(self, number: int, watched: Watched, sent: int, seconds: float, ago: float) -> Flow:
        seconds = max(seconds, 1e-9)
        new = sent - watched.told
        is_held = watched.paced <= watched.looked or new / seconds < 0.95 * watched.pace
        return Flow(number, seconds, new, float(is_held), sent, ago)


@dataclass(frozen=True)
class ScaledConditions(Conditions):
    def rates(self, period: int) -> list[tuple[float, float]]:
        return [(out * SCALE, into * SCALE) for out, into in super().rates(period)]


def probing(schedule: Schedule) -> Schedule:
    return tuple(Piece(start, end, PROBE_FACTOR * rate) for start, end, rate in schedule)


@pytest.mark.parametrize(("network", "slower"), [("N1", 1.15), ("N2", 1.15), ("N3", 1.25)])
@pytest.mark.slow
def test_links_are_known_well_enough(network: str, slower: float) -> None:
    conditions = ScaledConditions("C1", network, WORKERS, 1, 3)
    job = Job(Task.points(3), conditions, round(1e8 * SCALE), 1.0, 0.5, limit=30.0)
    told, monitored = FabricRun(job, 3, "async:30"), MonitoredRun(job, 3, "async:30")
    assert told.run().updates <= slower * monitored.run().updates
    deciles = statistics.quantiles(monitored.ratios, n=10)
    assert all(0.8 <= ratio <= 1.25 for ratio in deciles[3:7])
