"""Whether training with compressed gradients converges as dense training does, and whether it is faster: whole fits.

    python python/benchmarks compression/convergence --tasks lenet5 --json FILE
    python python/benchmarks compression/convergence --tasks transformer --ways dense,exact,auto --rates 100,1000 --seeds 1

Fits of this package's estimator on real data, by Spark executors on emulated hosts whose links have the rate: see
lab for what that needs. Ways differ in strategy and compression alone: same rows, seeds, epochs and learning
rates, which fall to 0, SGD with momentum 0.9. A seed is of the network, of the order of rows and of which fifth of the digits
is held out, so that with five seeds each digit is tested once. ``hitopk-mstopk`` selects as the paper's HiTopK does, the other
hierarchical ways exactly. ``-lost`` is without error feedback, ``-momentum`` with
momentum correction, ``auto`` with schedule auto. A row is a task by a way: seconds of a step, after the first epochs; the
accuracy after the last epoch on the rows that were held out, and by epoch, of each seed.

Verified: all losses are finite, and all ranks end with the same bits.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.applications import submit
from benchmarks.command import Note
from benchmarks.compression.convergence_job import Fits
from benchmarks.compression.tasks import TASKS
from lab import Lab
from lab.arguments import fraction, link_rates, names_of, positive, topology_of
from lab.bench import Row, versions

from sparkdl_comm.topology import Topology

#: Seconds of steps count from this epoch on, from 0: JVMs and Python compile and connect before, and auto tries.
_FIRST_TIMED = 2

_USUAL = ("dense", "exact", "hitopk", "exact-lost", "hitopk-momentum", "powersgd")


def ways(density: float) -> dict[str, dict[str, str]]:
    """By name, settings without their prefix."""

    def sparse(strategy: str, operator: str, **more: str) -> dict[str, str]:
        about = {f"compression.{name}": value for name, value in more.items()}
        return {"strategy": strategy, "compression": f"{operator}:{density:g}", **about}

    return {
        "dense": {"strategy": "ring"},
        **{operator: sparse("ring", operator) for operator in ("exact", "mstopk", "topk")},
        "hitopk": sparse("hitopk", "exact"),
        "hitopk-mstopk": sparse("hitopk", "mstopk"),
        "powersgd": {"strategy": "ring", "compression": "powersgd:2"},
        "exact-lost": sparse("ring", "exact", feedback="false"),
        "hitopk-lost": sparse("hitopk", "exact", feedback="false"),
        "hitopk-momentum": sparse("hitopk", "exact", momentum="0.9"),
        "auto": sparse("ring", "exact", schedule="auto"),
    }


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """A row for each task, rate and way."""
    topology, known = options.topology, ways(options.density)
    chosen = {name: known[name] for name in options.ways}
    for rate in options.rates:
        with (
            Lab(topology.with_rates(round(rate * 1e6))) as lab,
            lab.spark(memory=options.memory) as spark,
        ):
            for name in options.tasks:
                job = Fits(name, chosen, options.seeds, options.epochs, topology.world)
                found = submit(spark, Path(__file__).with_name("convergence_job.py"), job, options.timeout)
                for way in chosen:
                    fits = [result for result in found if result["way"] == way]
                    yield _row(name, way, rate, topology, options.density, fits)


def _row(name: str, way: str, rate: float, topology: Topology, density: float, fits: list[dict[str, Any]]) -> Row:
    last = [fit["accuracy"][-1] for fit in fits]
    return Row(
        suite="convergence",
        case=name,
        algorithm=way,
        topology=topology.text,
        rate_mbit=rate,
        world=topology.world,
        bytes=4 * sum(parameter.numel() for parameter in TASKS[name]().network().parameters()),
        samples=[seconds for fit in fits for seconds in fit["seconds_per_step"][_FIRST_TIMED:]],
        theory_seconds=None,
        verified=all(fit["verified"] for fit in fits),
        versions=versions("torch", "numpy", "pyspark"),
        extra={
            "density": 1.0 if way == "dense" else density,
            "accuracy": mean(last),
            "accuracies": last,
            "curves": [fit["accuracy"] for fit in fits],
            "losses": [fit["loss"] for fit in fits],
            "tried": [fit["compression"] for fit in fits],
        },
    )


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument("--tasks", type=names_of(TASKS), default=",".join(TASKS), help="some of %(default)s")
    known = ways(1)
    parser.add_argument("--ways", type=names_of(known), default=",".join(_USUAL), help=f"some of {', '.join(known)}")
    parser.add_argument("--topology", type=topology_of, default="hosts:2x2", help="of one NIC per host")
    parser.add_argument("--rates", type=link_rates, default="1000", help="Mbit/s of each host's link, each way")
    parser.add_argument("--density", type=fraction, default=0.01)
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--epochs", type=int, default=0, help="0: those of the task")
    parser.add_argument("--memory", default="1g", help="of an executor's JVM")
    parser.add_argument("--timeout", type=float, default=3000.0, help="seconds for a task at a rate")
    options = parser.parse_args(words)
    if options.quick:
        options.seeds, options.epochs = 1, _FIRST_TIMED + 1
    return options
