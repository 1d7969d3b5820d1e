"""The paper's table of settings, in virtual time: the fabric, a ring, and plain asynchronous training.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 7:
stragglers C1 to C3, rates of NICs N1 to N3 that change every 5 s, a monitor that reports them 0.2 s later, decisions every
100 ms, updates and models of 100 MB. The host of the server always has 10 Gbit/s. What is learned is small (see
``task.py``), but learned it is, by SGD with the delay-adaptive step size, ``SCALE`` being its constant for
all systems.

``ring`` goes over each NIC once. ``ring-2`` goes over it twice: then 100 MB take 320 ms at 10 Gbit/s, as the paper reckons
in section 2, where two workers share a NIC.

With ``--divergence`` the server has a replica on a host of its own, whose links also have the full rate; there is a row for
each bound on how far its model may be from the server's, and for each ``--lag``.

Seconds are virtual, those until the accuracy was reached, or until the model has had ``--updates``, a sample for each seed.
With ``--as-raced`` links and stragglers are drawn as ``--train`` draws them (``conditions.py``), and what those races
took stands beside.

Verified: it was reached in all of them, and no update was applied with a delay above the bound.
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

from benchmarks.fabric.conditions import RaceConditions
from benchmarks.fabric.simulation.fabric_run import Control, FabricRun
from benchmarks.fabric.simulation.rivals import AsyncRun, RingRun
from benchmarks.fabric.simulation.run import LIKELY, STRAGGLERS, Conditions, Job, Outcome, Run
from benchmarks.fabric.simulation.task import Task
from lab.arguments import positive
from lab.bench import Row, versions
from lab.results import read

from sparkdl_comm.errors import ConfError
from sparkdl_comm.fabric.params import Synchrony


class Raced(NamedTuple):
    """Seconds that all updates took in each race of a system, and the commit at which it was measured."""

    seconds: list[float]
    commit: str | None


def raced(folder: Path, setting: str, system: str) -> Raced | None:
    """None if there is no such result of the benchmark `fabric` --train`` in the folder."""
    system = system.removesuffix("-30")
    kind = "server" if system in ("fabric", "async") else system
    path = folder / f"fabric-trained-{setting}-{kind}.json"
    if not path.exists():
        return None
    results = read(path)
    [row] = [row for row in results.rows if row.algorithm == system]
    return Raced([curve[-1][0] for curve in row.extra["curves"]], results.origin.commit)


#: The paper's speed-up over the ring, in Table 2.
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
#: C of the step size: of 0.25, 0.5, 1 and 2 the one with which each of the systems needs the fewest updates, if the network
#: takes no time.
SCALE = 0.5
#: Virtual seconds after which a run is given up.
LIMIT = 3600.0
_SYSTEM = re.compile(r"(ring)(?:-(\d+))?|(async)|(fabric)-(bsp|\d+)")


class System(NamedTuple):
    """``begin`` makes a run of a job with a seed; ``bound``: on delays, None if there is none; ``control``: of the fabric."""

    name: str
    bound: int | None
    begin: Callable[[Job, int], Run]
    control: Control | None = None

    @property
    def steady(self) -> int:
        """How many hosts serve the model."""
        return 1 if self.control is None or self.control.divergence is None else 2


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--simulate", action="store_true", help="the table of settings in virtual time")
    parser.add_argument("--workers", type=positive, default=30, help="simulated, each on a host of its own")
    parser.add_argument("--settings", default=",".join(PAPER), help="such as C1-N1,C2-N3; C0 and N0 are undisturbed")
    parser.add_argument(
        "--systems", default="fabric-30,ring,ring-2,async", help="fabric-TAU, fabric-bsp, ring, ring-PASSES, async"
    )
    parser.add_argument(
        "--bytes", type=positive, default=100_000_000, help="of an update and of the model: those of ResNet-50"
    )
    parser.add_argument("--computing", type=float, default=0.1, help="seconds of an iteration that is not slowed down")
    parser.add_argument(
        "--as-raced",
        type=Path,
        metavar="RESULTS",
        help="of --train: the same draws, and beside each system what it took",
    )
    parser.add_argument("--accuracy", type=float, default=0.8, help="to be reached")
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between batches of decisions")
    parser.add_argument("--eager", action="store_true", help="workers get the model while their update is on its way")
    parser.add_argument(
        "--lag", type=_numbers, default="0.2", help="seconds after which a change of rate is reported; rows for each"
    )
    parser.add_argument(
        "--divergence", type=_numbers, default="", help="the server has a replica that is kept so near; rows for each"
    )


def check(parser: ArgumentParser, options: Namespace) -> None:
    """Makes lists of the options that are lists, and ends the program if one makes no sense."""
    options.settings = options.settings.split(",")
    for setting in options.settings:
        compute, _, network = setting.partition("-")
        if compute not in STRAGGLERS or network not in LIKELY:
            parser.error(f"--settings {setting}: there are {', '.join(STRAGGLERS)} with {', '.join(LIKELY)}")
    controls = [
        Control(options.interval, lag, options.eager, divergence)
        for lag in options.lag
        for divergence in options.divergence or [None]
    ]
    try:
        options.systems = [one for name in options.systems.split(",") for one in systems(name, controls)]
    except ConfError as error:
        parser.error(f"--systems: {error}")
    if options.quick:
        options.settings, options.repeats = options.settings[:1], 1


def systems(name: str, controls: Sequence[Control]) -> list[System]:
    """Makes those of a name, of the fabric one for each control.

    :raises ConfError: there is none.
    """
    found = _SYSTEM.fullmatch(name)
    if not found:
        raise ConfError(f"{name}: there are fabric-TAU, fabric-bsp, ring, ring-PASSES and async")
    if found[1]:
        passes = int(found[2] or 1)
        return [System(name, None, lambda job, seed: RingRun(job, seed, passes))]
    if found[3]:
        return [System(name, None, AsyncRun)]
    synchrony = Synchrony.parse("bsp" if found[5] == "bsp" else f"async:{found[5]}", "fabric-TAU")
    return [
        System(name, synchrony.bound or None, partial(FabricRun, synchrony=synchrony, control=control), control)
        for control in controls
    ]


def rows(options: Namespace) -> Iterator[Row]:
    """A row for each setting and system."""
    for setting in options.settings:
        made = [
            (one, [_run(one, setting, options.seed + n, options) for n in range(options.repeats)])
            for one in options.systems
        ]
        rings = {one.name: _seconds(outcomes) for one, outcomes in made if one.name.startswith("ring")}
        for one, outcomes in made:
            yield _row(one, setting, outcomes, rings, options)


def _row(one: System, setting: str, outcomes: list[Outcome], rings: dict[str, float], options: Namespace) -> Row:
    speedups = {
        f"speedup_over_{ring.replace('-', '_')}": seconds / _seconds(outcomes)
        for ring, seconds in rings.items()
        if ring != one.name
    }
    return Row(
        suite="fabric",
        case=setting,
        algorithm=one.name,
        topology=f"star:{options.workers + one.steady}",
        rate_mbit=10_000,
        world=options.workers,
        bytes=options.bytes,
        samples=[min(outcome.seconds, LIMIT) for outcome in outcomes],
        verified=all(
            outcome.seconds < LIMIT and (one.bound is None or max(outcome.delays) <= one.bound) for outcome in outcomes
        ),
        compute="emulated",
        versions=versions("numpy"),
        extra={
            "setting": setting,
            "system": one.name,
            "seconds_to_accuracy": _seconds(outcomes),
            "accuracy": min(outcome.accuracy for outcome in outcomes),
            "max_delay": max(max(outcome.delays) for outcome in outcomes),
            "mean_delay": statistics.mean(itertools.chain.from_iterable(outcome.delays for outcome in outcomes)),
            "updates": statistics.median(outcome.updates for outcome in outcomes),
            "dropped": statistics.median(outcome.dropped for outcome in outcomes),
            **speedups,
            **_fabric_only(one, outcomes),
            "paper_speedup": PAPER.get(setting) if one.name.startswith("fabric-") else None,
            "computing": options.computing,
            **_beside(options.as_raced, setting, one),
            "seed": options.seed,
        },
    )


def _run(one: System, setting: str, seed: int, options: Namespace) -> Outcome:
    compute, _, network = setting.partition("-")
    kind = RaceConditions if options.as_raced else Conditions
    conditions = kind(compute, network, options.workers, one.steady, seed, computing=options.computing)
    job = Job(Task.points(seed), conditions, options.workers, options.bytes, options.accuracy, SCALE, limit=LIMIT)
    if options.updates:
        job = replace(job, goal=0.0, evaluated=options.updates)
    return one.begin(job, seed).run()


def _beside(results: Path | None, setting: str, one: System) -> dict[str, object]:
    found = raced(results, setting, one.name) if results else None
    return {f"raced_{name}": value for name, value in found._asdict().items()} if found else {}


def _fabric_only(one: System, outcomes: list[Outcome]) -> dict[str, object]:
    """``replicated``: bytes that the replica got for each update of the model; ``norm``: of an update as it was applied.
    Both in the mean."""
    if one.control is None:
        return {}
    updates = sum(outcome.updates for outcome in outcomes)
    return {
        **vars(one.control),
        "replicated": sum(outcome.replicated for outcome in outcomes) / updates,
        "norm": sum(outcome.norms for outcome in outcomes) / updates,
    }


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",") if number]


def _seconds(outcomes: list[Outcome]) -> float:
    return statistics.median(min(outcome.seconds, LIMIT) for outcome in outcomes)
