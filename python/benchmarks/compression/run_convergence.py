"""Convergence and speed of training with compressed gradients, beside dense training: whole fits.

    python python/benchmarks compression/convergence --tasks lenet5 --json FILE
    python python/benchmarks compression/convergence --tasks transformer --ways dense,exact,auto --rates 100,1000 --seeds 1

Fits of this package's estimator on real data, by Spark executors on emulated hosts: see lab for what it needs. Ways differ
in strategy and compression alone: they have the same rows, seeds, epochs and learning rates, which fall to 0, and SGD with
momentum 0.9. The seed decides the network, the order of rows, and which fifth of the digits is held out. With five seeds
each digit is tested once. ``hitopk-mstopk`` selects like the paper's HiTopK, the other hierarchical ways exactly.
``-lost`` is without error feedback, ``-momentum`` with momentum correction, ``auto`` with schedule auto.

A row is a task by a way: seconds of a step after the first epochs, and the accuracy on held-out rows after the last epoch,
of each seed. Verified: all losses are finite, and all ranks end with the same bits.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.applications import submit
from benchmarks.command import Note
from benchmarks.compression.convergence_job import Fits
from benchmarks.compression.tasks import TASKS
from lab import Lab
from lab.arguments import link_rates, names_of, positive
from lab.bench import Row

from sparkdl_comm.networks import parameter_count
from sparkdl_comm.topology import Topology

TOPOLOGY = Topology.parse("hosts:2x2")
#: Seconds for a task at a rate.
TIMEOUT = 3000.0
#: First epoch whose steps count, from 0. Before it JVMs and Python compile and connect, and auto tries.
_FIRST_TIMED = 2


def _sparse(strategy: str, operator: str, **more: str) -> dict[str, str]:
    about = {f"compression.{name}": value for name, value in more.items()}
    return {"strategy": strategy, "compression": f"{operator}:0.01", **about}


#: Settings of each way, without their prefix.
WAYS = {
    "dense": {"strategy": "ring"},
    **{operator: _sparse("ring", operator) for operator in ("exact", "mstopk", "topk")},
    "hitopk": _sparse("hitopk", "exact"),
    "hitopk-mstopk": _sparse("hitopk", "mstopk"),
    "powersgd": {"strategy": "ring", "compression": "powersgd:2"},
    "exact-lost": _sparse("ring", "exact", feedback="false"),
    "hitopk-lost": _sparse("hitopk", "exact", feedback="false"),
    "hitopk-momentum": _sparse("hitopk", "exact", momentum="0.9"),
    "auto": _sparse("ring", "exact", schedule="auto"),
}


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Yield a row for each task, rate and way."""
    chosen = {name: WAYS[name] for name in options.ways}
    for rate in options.rates:
        with Lab(TOPOLOGY.with_rates(round(rate * 1e6))) as lab, lab.spark(memory="1g") as spark:
            for name in options.tasks:
                job = Fits(name, chosen, options.seeds, options.epochs, TOPOLOGY.world)
                found = submit(spark, Path(__file__).with_name("convergence_job.py"), job, TIMEOUT)
                for way in chosen:
                    yield _row(name, way, rate, [result for result in found if result["way"] == way])


def _row(name: str, way: str, rate: float, fits: list[dict[str, Any]]) -> Row:
    return Row(
        suite="convergence",
        case=name,
        algorithm=way,
        topology=TOPOLOGY.text,
        rate_mbit=rate,
        world=TOPOLOGY.world,
        bytes=4 * parameter_count(TASKS[name]().network()),
        samples=[seconds for fit in fits for seconds in fit["seconds_per_step"][_FIRST_TIMED:]],
        verified=all(fit["verified"] for fit in fits),
        extra={
            "accuracies": [fit["accuracy"][-1] for fit in fits],
            "curves": [fit["accuracy"] for fit in fits],
            "tried": [fit["compression"] for fit in fits],
        },
    )


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    usual = "dense,exact,hitopk,exact-lost,hitopk-momentum,powersgd"
    parser.add_argument("--tasks", type=names_of(TASKS), default=",".join(TASKS), help="some of %(default)s")
    parser.add_argument("--ways", type=names_of(WAYS), default=usual, help=f"some of {', '.join(WAYS)}")
    parser.add_argument("--rates", type=link_rates, default="1000", help="Mbit/s of each host's link, each way")
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--epochs", type=int, default=0, help="0: those of the task")
    options = parser.parse_args(words)
    if options.quick:
        options.seeds, options.epochs = 1, _FIRST_TIMED + 1
    return options
