"""Races over emulated hosts: which system is first to a goal, where links change their rates and hosts compute unevenly.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 7:
stragglers C1 to C3, and rates of NICs N1 to N3 that change every 5 s. All systems meet the same rates and the same
stragglers. Each worker has a host of its own. A server has one more, whose link always has the full rate, as in the paper;
the scheduler is beside the first worker. The paper's 10 Gbit/s are ``--rate`` here. Rates change from when training begins,
however long processes take to start.

``--train``: the digits, by a perceptron of 238,510 parameters and plain SGD, whose steps all systems add up with the same
factor. ``--lda``: topics of docstrings, by collapsed Gibbs sampling. Both are really computed, in a part of ``--computing``
seconds; the rest is waited for, so that two cores are enough. No system sends while it computes.

Systems: ``fabric-TAU`` and ``fabric-bsp`` over this package's fabric (``fabric``: with a bound of 30), ``ring`` by its ring
all-reduce, ``ddp`` by torch's DistributedDataParallel over gloo, ``async`` with a parameter server that nobody schedules.

Seconds are those from the beginning until the goal was reached, a sample for each seed. Models are copied meanwhile, after as
many updates as there are workers, and are looked at when all is over. Verified: the goal was reached with every seed, and no
update was applied with a delay above the bound. ``busy_cores``: of this machine; figures are those of the network, and not
of its processors, only if these are well below all there are.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.fabric.conditions import SETTINGS, SteadyServer
from benchmarks.fabric.curve import Moment, Start, first
from benchmarks.fabric.race import Race, System
from benchmarks.fabric.topics import Corpus
from lab import Lab
from lab.bench import Row, versions
from lab.cluster import Cluster
from lab.rates import DISTRIBUTIONS

from sparkdl_comm.errors import ConfError
from sparkdl_comm.networks import digits_28x28
from sparkdl_comm.topology import Topology

RANK_PROGRAM = Path(__file__).parent / "rank.py"
#: Rates of N0 do not change.
STILL = "N0"
#: Seconds that a rank waits for another: the start of all takes less, and so does what one sends over the slowest link.
_PATIENCE = 60.0


class Subject(NamedTuple):
    """What is learned: ``measure`` names the scores; if nothing else is asked for, the ``goal``, which each system reaches
    well before it has had all ``updates``."""

    measure: str
    goal: float
    updates: int
    systems: str
    settings: str


DIGITS = Subject("accuracy", 0.92, 420, "fabric,ring,ddp,async", "C2-N2")
TOPICS = Subject("perplexity", 670.0, 300, "fabric-30,fabric-bsp,ring,async", "C1-N1")


def add_arguments(parser: ArgumentParser) -> None:
    """Beside those that races have in common with the simulator."""
    parser.add_argument("--train", action="store_true", help="digits, on emulated hosts")
    parser.add_argument("--lda", action="store_true", help="topics of docstrings, on emulated hosts")
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s of a host's link, the paper's 10 Gbit/s")
    parser.add_argument("--updates", type=int, default=0, help="of the model, then a race is over; 0: enough")
    parser.add_argument("--perplexity", type=float, default=TOPICS.goal, help="to be reached by --lda")
    parser.add_argument("--topics", type=int, default=40, help="of --lda")
    parser.add_argument("--words", type=int, default=4000, help="that --lda knows")
    parser.add_argument("--loopback", action="store_true", help="without links of their own: does it work?")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds that a race may take")


def defaults(options: Namespace) -> dict[str, Any]:
    """Of the options that the simulator has other defaults for."""
    subject = TOPICS if options.lda else DIGITS
    return {"workers": 6, "settings": subject.settings, "systems": subject.systems, "accuracy": subject.goal}


def check(parser: ArgumentParser, options: Namespace) -> None:
    """Makes lists of the options that are lists, and ends the program if one makes no sense."""
    options.settings = options.settings.split(",")
    for setting in options.settings:
        compute, _, network = setting.partition("-")
        if compute not in SETTINGS or network not in (STILL, *DISTRIBUTIONS):
            parser.error(
                f"--settings {setting}: there are {', '.join(SETTINGS)} with {', '.join((STILL, *DISTRIBUTIONS))}"
            )
    if not 1 <= options.rate <= 100_000:
        parser.error(f"--rate {options.rate}: from 1 to 100000 Mbit/s")
    try:
        options.systems = [System.parse(name) for name in options.systems.split(",")]
    except ConfError as error:
        parser.error(f"--systems: {error}")
    if options.lda and any(system.kind == "ddp" for system in options.systems):
        parser.error("--systems ddp: DistributedDataParallel sums gradients; --lda has none")
    if options.workers < 2:
        parser.error(f"--workers {options.workers}: at least 2")
    subject = TOPICS if options.lda else DIGITS
    options.updates = options.updates or subject.updates
    if options.quick:
        options.settings, options.repeats, options.computing = options.settings[:1], 1, 0.01
        options.updates = 20 * options.workers


def rows(options: Namespace) -> Iterator[Row]:
    """A row for each setting and system."""
    with tempfile.TemporaryDirectory(prefix="sparkdl-race-") as folder:
        data = _data(options, Path(folder) / "data.npz")
        for setting in options.settings:
            for system in options.systems:
                runs = [
                    _run(_race(system, setting, seed, data, options), setting, options)
                    for seed in range(options.seed, options.seed + options.repeats)
                ]
                yield _row(system, setting, runs, options)


def _data(options: Namespace, path: Path) -> str:
    """Read once, as that takes longer than all else that ranks do before they begin."""
    if options.lda:
        corpus = Corpus.of_docstrings(options.words)
        np.savez(path, training=corpus.training, held_out=corpus.held_out, words=len(corpus.words))
    else:
        pixels, labels = digits_28x28()
        np.savez(path, pixels=pixels.numpy(), labels=labels.numpy())
    return str(path)


def _race(system: System, setting: str, seed: int, data: str, options: Namespace) -> Race:
    return Race(
        system=system,
        workers=options.workers,
        updates=options.updates,
        computing=options.computing,
        stragglers=setting.partition("-")[0],
        rate=round(options.rate * 1e6),
        interval=options.interval,
        seed=seed,
        timeout=min(options.timeout, _PATIENCE),
        data=data,
        topics=options.topics if options.lda else 0,
    )


def _run(race: Race, setting: str, options: Namespace) -> dict[str, Any]:
    """What the rank with the model told."""
    topology = Topology.parse(_star(race.system, race.workers)).with_rates(race.rate)
    with tempfile.TemporaryDirectory(prefix="sparkdl-race-") as folder:
        command = [sys.executable, str(RANK_PROGRAM), folder, race.to_json()]
        if options.loopback:
            with Lab.loopback(topology) as cluster:
                return _told(cluster, command, "lo", options.timeout)
        network = setting.partition("-")[2]
        with Lab(topology) as lab:
            changing = (
                SteadyServer(DISTRIBUTIONS[network], seed=race.seed, workers=race.workers) if network != STILL else None
            )
            begins = Start(Path(folder), race.workers).wait
            with lab.schedule(changing, begins) if changing else nullcontext():
                return _told(lab, command, lab.layout.node(0).interface(0), options.timeout)


def _star(system: System, workers: int) -> str:
    return f"star:{workers + system.has_server}"


def _told(cluster: Cluster, command: list[str], interface: str, timeout: float) -> dict[str, Any]:
    results = cluster.run(command, timeout=timeout, env={"GLOO_SOCKET_IFNAME": interface})
    [told] = [line for result in results for line in result.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(told)
    found["curve"] = [Moment(*moment) for moment in found["curve"]]
    return found


def _row(system: System, setting: str, runs: list[dict[str, Any]], options: Namespace) -> Row:
    subject, goal = (TOPICS, options.perplexity) if options.lda else (DIGITS, options.accuracy)
    reached = [first(run["curve"], lambda score: score <= goal if options.lda else score >= goal) for run in runs]
    samples = [(moment or run["curve"][-1]).seconds for moment, run in zip(reached, runs, strict=True)]
    within = system.delay_bound is None or max(run["max_delay"] for run in runs) <= system.delay_bound
    return Row(
        suite="fabric",
        case=f"{'lda' if options.lda else 'train'} {setting}",
        algorithm=system.name,
        topology="loopback" if options.loopback else _star(system, options.workers),
        rate_mbit=None if options.loopback else options.rate,
        world=options.workers,
        bytes=4 * runs[0]["elements"],
        samples=samples,
        verified=within and None not in reached,
        compute="emulated",
        versions=versions("torch", "numpy"),
        extra={
            "setting": setting,
            "system": system.name,
            f"seconds_to_{subject.measure}": statistics.median(samples),
            subject.measure: goal,
            "reached": sum(moment is not None for moment in reached),
            "last": [run["curve"][-1].score for run in runs],
            "updates_to_goal": [moment and moment.updates for moment in reached],
            "max_delay": max(run["max_delay"] for run in runs),
            "dropped": statistics.median(run["dropped"] for run in runs),
            "busy_cores": max(run["busy"] for run in runs),
            "computing": options.computing,
            "seed": options.seed,
            "curves": [run["curve"] for run in runs],
        },
    )
