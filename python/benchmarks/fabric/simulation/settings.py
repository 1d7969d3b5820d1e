"""The paper's table of settings in virtual time: the fabric, a ring, and plain asynchronous training.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 7: the
rates of NICs change every 5 s. The fabric decides every 100 ms, and its monitor reports new rates 0.2 s later. Updates
and models have 100 MB. The server's host always has 10 Gbit/s. Workers train a small model (``run.py``) by SGD with
the delay-adaptive step size.

``ring`` goes over each NIC once. ``ring-2`` goes over it twice: 100 MB then take 320 ms at 10 Gbit/s, as in the paper's
section 2, where two workers share a NIC. With ``--divergence`` the server has a replica on its own host with the full
rate. There is a row for each bound on the distance of its model, and for each ``--lag``. With ``--as-raced`` links and
stragglers are drawn as for ``--train``, and the seconds of those races stand beside.

Seconds are virtual, until the accuracy is reached or the model has had ``--updates``; a sample for each seed. Verified:
each seed reaches the goal, and no update is applied with a delay above the bound.
"""

from __future__ import annotations

import itertools
import re
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.fabric.conditions import Conditions, RaceConditions
from benchmarks.fabric.races import System
from benchmarks.fabric.simulation.fabric_run import Control, FabricRun
from benchmarks.fabric.simulation.run import AsyncRun, Job, Outcome, RingRun, Run, Task
from lab.bench import Row
from lab.results import read

from sparkdl_comm.errors import ConfError

#: The paper's speed-up over its ring, in Table 2.
PAPER = {
    "C1-N1": 1.74,
    "C1-N2": 1.23,
    "C1-N3": 1.42,
    "C2-N1": 2.96,
    "C2-N2": 2.0,
    "C2-N3": 2.32,
    "C3-N1": 1.90,
    "C3-N2": 1.33,
    "C3-N3": 1.42,
}
#: C of the step size. Of 0.25, 0.5, 1 and 2, all systems need the fewest updates with this one if transfers take no time.
SCALE = 0.5
#: Virtual seconds after which a run is given up.
LIMIT = 3600.0


class Simulated(NamedTuple):
    """System to simulate. ``begin`` makes its run of a job with a seed; ``control`` is of the fabric only."""

    name: str
    bound: int | None
    begin: Callable[[Job, int], Run]
    control: Control | None = None

    @property
    def steady(self) -> int:
        """Number of hosts that serve the model."""
        return 1 if self.control is None or self.control.divergence is None else 2


def check(parser: ArgumentParser, options: Namespace) -> None:
    """Replace the systems' names by systems, and end the program if one is unknown."""
    controls = list(itertools.starmap(Control, itertools.product(options.lag, options.divergence)))
    try:
        options.systems = [one for name in options.systems.split(",") for one in systems(name, controls)]
    except ConfError as error:
        parser.error(f"--systems: {error}")


def systems(name: str, controls: Sequence[Control]) -> list[Simulated]:
    """Return the systems of a name: of the fabric one for each control.

    :raises ConfError: the name is unknown.
    """
    if ring := re.fullmatch(r"ring(?:-(\d+))?", name):
        return [Simulated(name, None, partial(RingRun, passes=int(ring[1] or 1)))]
    system = System.parse(name)
    if system.kind == "ddp":
        raise ConfError("ddp: the simulator has fabric-TAU, fabric-bsp, ring, ring-PASSES and async")
    if system.kind == "async":
        return [Simulated(name, None, AsyncRun)]
    return [
        Simulated(name, system.delay_bound, partial(FabricRun, sync=system.sync, control=control), control)
        for control in controls
    ]


def rows(options: Namespace) -> Iterator[Row]:
    """Simulate all runs. Yield a row of results for each system in each setting, such as C2-N2 (see conditions.py).

    A row has the virtual seconds of one run for each seed.
    """
    for setting in options.settings:
        for one in options.systems:
            yield _row(one, setting, [_run(one, setting, seed, options) for seed in range(options.repeats)], options)


def _row(one: Simulated, setting: str, outcomes: list[Outcome], options: Namespace) -> Row:
    delays = list(itertools.chain.from_iterable(outcome.delays for outcome in outcomes))
    extra: dict[str, object] = {
        "accuracy": min(outcome.accuracy for outcome in outcomes),
        "max_delay": max(delays),
        "mean_delay": statistics.mean(delays),
        "updates": statistics.median(outcome.updates for outcome in outcomes),
        "dropped": statistics.median(outcome.dropped for outcome in outcomes),
    }
    if one.control is not None:
        # Bytes to the replica and norm for each applied update, in the mean.
        extra |= {"paper_speedup": PAPER.get(setting), **vars(one.control)}
        extra["replicated"] = sum(outcome.replicated for outcome in outcomes) / len(delays)
        extra["norm"] = sum(outcome.norms for outcome in outcomes) / len(delays)
    if options.as_raced:
        extra |= _raced(options.as_raced, setting, one.name.removesuffix("-30"))
    return Row(
        suite="fabric",
        case=setting,
        algorithm=one.name,
        topology=f"star:{options.workers + one.steady}",
        rate_mbit=10_000,
        world=options.workers,
        bytes=options.bytes,
        samples=[min(outcome.seconds, LIMIT) for outcome in outcomes],
        verified=all(outcome.seconds < LIMIT for outcome in outcomes) and max(delays) <= (one.bound or max(delays)),
        compute="emulated",
        extra=extra,
    )


def _run(one: Simulated, setting: str, seed: int, options: Namespace) -> Outcome:
    compute, _, network = setting.partition("-")
    kind = RaceConditions if options.as_raced else Conditions
    conditions = kind(compute, network, options.workers, one.steady, seed, computing=options.computing)
    job = Job(Task.points(seed), conditions, options.bytes, options.accuracy, SCALE, limit=LIMIT)
    if options.updates:
        job = replace(job, goal=0.0, evaluated=options.updates)
    return one.begin(job, seed).run()


def _raced(folder: Path, setting: str, system: str) -> dict[str, object]:
    """Return the seconds of all updates in each race of a system, and the measured commit; nothing without results."""
    kind = "server" if system in ("fabric", "async") else system
    path = folder / f"fabric-trained-{setting}-{kind}.json"
    if not path.exists():
        return {}
    results = read(path)
    [row] = [row for row in results.rows if row.algorithm == system]
    seconds = [curve[-1][0] for curve in row.extra["curves"]]
    return {"raced_seconds": seconds, "raced_commit": results.origin.commit}
