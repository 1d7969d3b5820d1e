"""A training whose images grow, with compressed gradients while they are small: the shape of the CommLib paper's record run.

    python python/benchmarks compression/record --json python/benchmarks/compression/results/compress-record.json

Fits of this package's estimator on digits, by Spark executors on emulated hosts whose links have the rate: see
lab for what that needs. A training has a stage for each of --sides, of as many --epochs, see
record_job.py. The ways are those of the paper's section 5.6: `record` sums by hitopk, with momentum correction, in
the first stage and by the dense 2D torus in later ones; `dense` and `sparse` do the one or the other in all stages.

A row is a way by a stage: seconds of a step, of so many `rows`, but for the stage's first epoch, in which Python and JVMs
start; and `accuracies`, after the stage, of each seed. One more row of each way is of whole trainings: seconds of all steps up
to the end of the first epoch with the --target accuracy on rows that were held out, `reached` in so many trainings; of the
others all their steps. Verified: all losses are finite, and all ranks end with the same bits.
"""

from __future__ import annotations

import itertools
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.applications import submit
from benchmarks.command import Note
from benchmarks.compression.record_job import BATCH, AnySize, Trainings
from lab import Lab
from lab.arguments import fraction, link_rate, positive, topology_of, whole_numbers
from lab.bench import Row, versions

from sparkdl_comm.networks import parameter_count

#: Epochs at the beginning of a stage whose steps are not told.
_UNTIMED = 1


def ways(density: float, stages: int) -> dict[str, list[dict[str, str]]]:
    """By name, settings of each stage, without their prefix."""
    dense = {"strategy": "torus2d"}
    sparse = {"strategy": "hitopk", "compression": f"exact:{density:g}", "compression.momentum": "0.9"}
    return {
        "dense": [dense] * stages,
        "sparse": [sparse] * stages,
        "record": [sparse, *[dense] * (stages - 1)],
    }


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """A row for each way and stage, and one for each way."""
    topology, of_ways = options.topology, ways(options.density, len(options.sides))
    job = Trainings(of_ways, options.sides, options.epochs, options.seeds, topology.world)
    with (
        Lab(topology.with_rates(round(options.rate * 1e6))) as lab,
        lab.spark(memory=options.memory) as spark,
    ):
        found = submit(spark, Path(__file__).with_name("record_job.py"), job, options.timeout)
    for way in of_ways:
        yield from _rows(way, [result for result in found if result["way"] == way], job, options)


def _rows(way: str, trainings: list[dict[str, Any]], job: Trainings, options: Namespace) -> Iterator[Row]:
    def row(case: str, samples: Sequence[float], **extra: Any) -> Row:
        return Row(
            suite="record",
            case=case,
            algorithm=way,
            topology=options.topology.text,
            rate_mbit=options.rate,
            world=options.topology.world,
            bytes=4 * parameter_count(AnySize()),
            samples=samples,
            verified=all(training["verified"] for training in trainings),
            versions=versions("torch", "numpy", "pyspark"),
            extra=extra,
        )

    for number, (side, settings) in enumerate(zip(job.sides, job.ways[way], strict=True)):
        stages = [training["stages"][number] for training in trainings]
        steps = [seconds / stage["steps"] for stage in stages for seconds in stage["seconds"][_UNTIMED:]]
        yield row(
            f"{side} x {side}",
            steps,
            strategy=settings["strategy"],
            density=options.density if "compression" in settings else 1.0,
            epochs=job.epochs[number],
            rows=BATCH,
            accuracies=[stage["accuracy"][-1] for stage in stages],
        )
    times = [time_to(options.target, training["stages"]) for training in trainings]
    yield row(
        "training",
        [seconds for seconds, _ in times],
        target=options.target,
        reached=sum(is_reached for _, is_reached in times),
        accuracies=[training["stages"][-1]["accuracy"][-1] for training in trainings],
        curves=[[share for stage in training["stages"] for share in stage["accuracy"]] for training in trainings],
    )


def time_to(target: float, stages: Sequence[dict[str, list[float]]]) -> tuple[float, bool]:
    """Seconds of all steps up to the end of the first epoch with that accuracy, and whether there was one."""
    seconds = itertools.accumulate(each for stage in stages for each in stage["seconds"])
    total = 0.0
    for total, share in zip(seconds, (share for stage in stages for share in stage["accuracy"]), strict=True):
        if share >= target:
            return total, True
    return total, False


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument("--topology", type=topology_of, default="hosts:4x2", help="of one NIC per host")
    parser.add_argument("--rate", type=link_rate, default=200.0, help="Mbit/s of each host's link, each way")
    parser.add_argument(
        "--sides", type=whole_numbers(8), default="16,24,32", help="pixels of the images' sides in each stage"
    )
    parser.add_argument("--epochs", type=whole_numbers(_UNTIMED + 1), default="10,5,3", help="of each stage")
    parser.add_argument("--density", type=fraction, default=0.01)
    parser.add_argument("--target", type=float, default=0.97, help="accuracy")
    parser.add_argument("--seeds", type=positive, default=3)
    parser.add_argument("--memory", default="1g", help="of an executor's JVM")
    parser.add_argument("--timeout", type=float, default=3000.0, help="seconds for all")
    options = parser.parse_args(words)
    if len(options.sides) != len(options.epochs):
        parser.error(f"--epochs: must be as many numbers as --sides, {len(options.sides)}, not {len(options.epochs)}")
    if options.quick:
        options.sides = options.sides[:2]
        options.epochs, options.seeds = [_UNTIMED + 1] * len(options.sides), 1
    return options
