"""The fabric's scheduler alone: how long it takes to decide on one batch.

As in the paper, section 7.4: half as many hosts as updates, a core without congestion, deadlines drawn from 1 to twice the
number of updates. Which rates NICs have, and how many aggregators there are, the paper does not say: here one on every
host, and NICs of 10 Gbit/s (``even``), or each direction with a rate of its own, from 1 to 10 Gbit/s (``drawn``).

Verified of every repeat: each update is sent or dropped, and none is applied after its deadline; each transfer has all of its
bytes, an aggregator sends when it has all it sums, and no link carries more than it can.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from lab.arguments import whole_numbers
from lab.bench import Row, measure, versions

from sparkdl_comm.fabric.core.messages import (
    BandwidthReported,
    Decision,
    DroppedUpdate,
    Push,
    Roles,
    Update,
)
from sparkdl_comm.fabric.core.scheduler import Scheduler
from sparkdl_comm.fabric.params import Rules, Synchrony

RATE = 1.25e9
BYTES = 100_000_000
#: What the paper's scheduler took, seconds, by updates: section 7.4. The first is of fewer than 10.
PAPER = {10: 0.005, 100: 0.030, 500: 0.440, 1000: 1.460}


class Batch(NamedTuple):
    """Updates with their deadlines, and the rates of hosts, bytes per second; the last host is the server's."""

    deadlines: list[int]
    rates: list[tuple[float, float]]

    def host(self, update: int) -> int:
        return update % (len(self.rates) - 1)


class Timed(NamedTuple):
    seconds: float
    batch: Batch
    decisions: list[Decision]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--scheduler",
        type=whole_numbers(),
        metavar="UPDATES",
        help="the scheduler alone: sizes of batches, such as 10,100,500,1000",
    )


def check(parser: ArgumentParser, options: Namespace) -> None:
    """Any sizes are right; ``--quick`` bounds them."""
    if options.quick:
        options.scheduler, options.repeats = [min(100, updates) for updates in options.scheduler], 1


def rows(options: Namespace) -> Iterator[Row]:
    """A row for each size and kind of rates."""
    draw = np.random.default_rng(options.seed)
    for updates in dict.fromkeys(options.scheduler):
        cases = {case: partial(_timed, updates, case, draw) for case in ("even", "drawn")}
        for case, repeats in measure(cases, warmup=options.warmup, repeats=options.repeats).items():
            last = repeats[-1].decisions
            yield Row(
                suite="fabric",
                case=f"schedule-{case}",
                algorithm="fabric",
                topology="loopback",
                rate_mbit=None,
                world=len(repeats[-1].batch.rates),
                bytes=updates * BYTES,
                samples=[repeat.seconds for repeat in repeats],
                verified=all(right(repeat.batch, repeat.decisions) for repeat in repeats),
                versions=versions("numpy"),
                extra={
                    "updates": updates,
                    "paper_seconds": PAPER.get(updates),
                    "dropped": sum(isinstance(decision, DroppedUpdate) for decision in last),
                    "transfers_to_server": sum(
                        isinstance(decision, Push) and decision.turn is not None for decision in last
                    ),
                    "seed": options.seed,
                },
            )


def _timed(updates: int, case: str, draw: np.random.Generator) -> Timed:
    return decided(drawn(updates, case, draw))


def drawn(updates: int, case: str, draw: np.random.Generator) -> Batch:
    """A batch of the paper's."""
    deadlines = [int(deadline) for deadline in draw.integers(1, 2 * updates, endpoint=True, size=updates)]
    hosts = max(1, updates // 2)
    part = draw.uniform(0.1, 1.0, size=(hosts, 2)) if case == "drawn" else np.ones((hosts, 2))
    return Batch(deadlines, [(float(out), float(into)) for out, into in part * RATE] + [(RATE, RATE)])


def decided(batch: Batch) -> Timed:
    """Has the scheduler decide on a batch."""
    updates, hosts = len(batch.deadlines), len(batch.rates) - 1
    roles = Roles(
        workers=tuple(batch.host(worker) for worker in range(updates)),
        servers=(hosts,),
        aggregators=tuple(range(hosts)),
    )
    scheduler = Scheduler(roles, Rules(Synchrony("async", 1), lambda *_: 1.0))
    for host, pair in enumerate(batch.rates):
        scheduler.observe(BandwidthReported(host, *pair), 0.0)
    for update, deadline in enumerate(batch.deadlines):
        scheduler.observe(Update(update, update, (BYTES,), deadline - 1, 1.0), 0.0)
    begun = time.perf_counter()
    decisions = scheduler.decide(0.0)
    return Timed(time.perf_counter() - begun, batch, decisions)


def right(batch: Batch, decisions: Sequence[Decision]) -> bool:
    """Whether a schedule is what it must be: see the module."""
    pushes = {decision.id: decision for decision in decisions if isinstance(decision, Push)}
    served = [push for push in pushes.values() if push.turn is not None]
    order = [update for push in sorted(served, key=lambda push: push.turn or 0) for update in push.updates]
    dropped = [decision.update for decision in decisions if isinstance(decision, DroppedUpdate)]
    if sorted([*order, *dropped]) != list(range(len(batch.deadlines))):
        return False
    if any(position > batch.deadlines[update] for position, update in enumerate(order, 1)):
        return False
    changes: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for push in pushes.values():
        source, target = (
            _host(push.source.role, push.source.index, batch),
            _host(push.target.role, push.target.index, batch),
        )
        if any(push.schedule and pushes[other].end > push.schedule[0].start for other in push.after):
            return False
        carried = sum(rate * (end - start) for start, end, rate in push.schedule)
        if abs(carried - (push.bytes if source != target else 0)) > 1e-6 * push.bytes:
            return False
        for start, end, rate in push.schedule:
            changes[source, 0] += [(start, rate), (end, -rate)]
            changes[target, 1] += [(start, rate), (end, -rate)]
    return all(_carries(batch.rates[host][way], steps) for (host, way), steps in changes.items())


def _carries(rate: float, steps: list[tuple[float, float]]) -> bool:
    """Whether a link of this rate can do what changes by these steps at these times."""
    times, by = np.array(sorted(steps)).T
    used = by.cumsum()
    # Of steps at one time, or that rounding has put apart, only all together count.
    lasting = np.diff(times, append=np.inf) > 1e-9
    return bool((used[lasting] <= rate * (1 + 1e-9)).all())


def _host(role: str, index: int, batch: Batch) -> int:
    if role == "server":
        return len(batch.rates) - 1
    return batch.host(index) if role == "worker" else index
