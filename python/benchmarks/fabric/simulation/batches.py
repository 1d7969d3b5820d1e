"""The fabric's scheduler alone: how long it takes to decide on one batch.

As in the paper, section 7.4: half as many hosts as updates, a core without congestion, deadlines drawn from 1 to twice
the number of updates. The paper gives neither the NICs' rates nor the number of aggregators. Here each host has one
aggregator, and NICs have 10 Gbit/s (``even``) or a random rate from 1 to 10 Gbit/s in each direction (``drawn``).

Verified in every repeat: each update is sent or dropped, and none is applied after its deadline. Each transfer has all of
its bytes. An aggregator sends when it has all it sums. No link carries more than it can.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from benchmarks.fabric.conditions import FULL_RATE
from lab.bench import Row, measure

from sparkdl_comm.fabric.core.messages import BandwidthReported, Decision, DroppedUpdate, Push, Roles, Update
from sparkdl_comm.fabric.core.scheduler import Scheduler
from sparkdl_comm.fabric.params import FabricParams

BYTES = 100_000_000
#: Seconds of the paper's scheduler, by updates: section 7.4. The first is for fewer than 10.
PAPER = {10: 0.005, 100: 0.030, 500: 0.440, 1000: 1.460}


class Batch(NamedTuple):
    """Updates with their deadlines, and the rates of hosts, bytes per second. The last host is the server's."""

    deadlines: list[int]
    rates: list[tuple[float, float]]

    @property
    def roles(self) -> Roles:
        """Roles with a worker for each update."""
        hosts = len(self.rates) - 1
        workers = tuple(update % hosts for update in range(len(self.deadlines)))
        return Roles(workers=workers, servers=(hosts,), aggregators=tuple(range(hosts)))


class Decided(NamedTuple):
    """A batch, the decisions about it, and the seconds that they took."""

    batch: Batch
    decisions: list[Decision]
    seconds: float


def rows(options: Namespace) -> Iterator[Row]:
    """Time the scheduler's decisions. Yield a row of results for each batch size, with even and with drawn rates."""
    draw = np.random.default_rng(0)
    for updates in options.scheduler:
        cases = {case: partial(_timed, updates, case, draw) for case in ("even", "drawn")}
        for case, repeats in measure(cases, warmup=options.warmup, repeats=options.repeats).items():
            yield Row(
                suite="fabric",
                case=f"schedule-{case}",
                algorithm="fabric",
                world=len(repeats[-1].batch.rates),
                bytes=updates * BYTES,
                samples=[repeat.seconds for repeat in repeats],
                verified=all(right(repeat.batch, repeat.decisions) for repeat in repeats),
                extra={"updates": updates, "paper_seconds": PAPER.get(updates)},
            )


def _timed(updates: int, case: str, draw: np.random.Generator) -> Decided:
    return decided(drawn(updates, case, draw))


def drawn(updates: int, case: str, draw: np.random.Generator) -> Batch:
    """Return a batch as in the paper."""
    deadlines = [int(deadline) for deadline in draw.integers(1, 2 * updates, endpoint=True, size=updates)]
    hosts = max(1, updates // 2)
    shares = draw.uniform(0.1, 1.0, size=(hosts, 2)) if case == "drawn" else np.ones((hosts, 2))
    rates = [(float(out), float(into)) for out, into in shares * FULL_RATE]
    return Batch(deadlines, [*rates, (FULL_RATE, FULL_RATE)])


def decided(batch: Batch) -> Decided:
    """Let the scheduler decide on a batch."""
    scheduler = Scheduler(batch.roles, FabricParams("async:1"))
    for host, pair in enumerate(batch.rates):
        scheduler.observe(BandwidthReported(host, *pair), 0.0)
    for update, deadline in enumerate(batch.deadlines):
        scheduler.observe(Update(update, update, (BYTES,), deadline - 1, 1.0), 0.0)
    begun = time.perf_counter()
    decisions = scheduler.decide(0.0)
    return Decided(batch, decisions, time.perf_counter() - begun)


def right(batch: Batch, decisions: Sequence[Decision]) -> bool:
    """Check a schedule: see the module."""
    pushes = {decision.id: decision for decision in decisions if isinstance(decision, Push)}
    served = [push for push in pushes.values() if push.turn is not None]
    order = [update for push in sorted(served, key=lambda push: push.turn or 0) for update in push.updates]
    dropped = [decision.update for decision in decisions if isinstance(decision, DroppedUpdate)]
    if sorted([*order, *dropped]) != list(range(len(batch.deadlines))):
        return False
    if any(position > batch.deadlines[update] for position, update in enumerate(order, 1)):
        return False
    changes: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    roles = batch.roles
    for push in pushes.values():
        ends = roles.host(push.source), roles.host(push.target)
        if any(push.schedule and pushes[other].end > push.schedule[0].start for other in push.after):
            return False
        carried = sum(rate * (end - start) for start, end, rate in push.schedule)
        if abs(carried - (push.bytes if ends[0] != ends[1] else 0)) > 1e-6 * push.bytes:
            return False
        for start, end, rate in push.schedule:
            for way, host in enumerate(ends):
                changes[host, way] += [(start, rate), (end, -rate)]
    return all(_fits(batch.rates[host][way], steps) for (host, way), steps in changes.items())


def _fits(rate: float, steps: list[tuple[float, float]]) -> bool:
    """Check that the load of a link never exceeds its rate. A step is a time and the change of load then."""
    times, by = np.array(sorted(steps)).T
    load = by.cumsum()
    # Only the last of the steps at one time counts. Rounding may have put them slightly apart.
    is_last = np.diff(times, append=np.inf) > 1e-9
    return bool((load[is_last] <= rate * (1 + 1e-9)).all())
