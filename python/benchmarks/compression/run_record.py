"""Training on growing images, with compressed gradients while images are small, like the CommLib paper's record run.

    python python/benchmarks compression/record --json python/benchmarks/compression/results/compress-record.json

Fits of this package's estimator on digits, by Spark executors on emulated hosts: see lab for what it needs. A training has
a stage for each of SIDES, with as many EPOCHS (see record_job.py). The ways are those of the paper's section 5.6: `record`
sums by hitopk, with momentum correction, in the first stage and by the dense 2D torus in later ones. `dense` and `sparse`
do only one of them.

A row is a way by a stage: seconds of a step of `rows`, without the stage's first epoch, in which Python and JVMs start; and
`accuracies` after the stage, of each seed. One more row of each way is of whole trainings: seconds of all steps up to the
end of the first epoch with the TARGET accuracy on held-out rows, which `reached` trainings have. Verified: all losses are
finite, and all ranks end with the same bits.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.applications import submit
from benchmarks.command import Note
from benchmarks.compression.record_job import BATCH, AnySize, Trainings
from lab import Lab
from lab.bench import Row

from sparkdl_comm.networks import parameter_count
from sparkdl_comm.topology import Topology

TOPOLOGY, QUICK_TOPOLOGY, RATE_MBIT = Topology.parse("hosts:4x2"), Topology.parse("hosts:2x2"), 200.0
#: Pixels of the images' sides, and epochs, in each stage.
SIDES, EPOCHS = (16, 24, 32), (10, 5, 3)
DENSITY, TARGET, SEEDS = 0.01, 0.97, 3
#: Seconds for all trainings.
TIMEOUT = 3000.0
#: First epochs of a stage whose steps do not count.
_UNTIMED = 1


def ways(stages: int) -> dict[str, list[dict[str, str]]]:
    """Return each way's settings by stage, without their prefix."""
    dense = {"strategy": "torus2d"}
    sparse = {"strategy": "hitopk", "compression": f"exact:{DENSITY:g}", "compression.momentum": "0.9"}
    return {
        "dense": [dense] * stages,
        "sparse": [sparse] * stages,
        "record": [sparse, *[dense] * (stages - 1)],
    }


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Yield a row for each way and stage, and one for each way."""
    topology, sides, epochs, seeds = TOPOLOGY, SIDES, EPOCHS, SEEDS
    if options.quick:
        topology, sides, epochs, seeds = QUICK_TOPOLOGY, (8, 16), (_UNTIMED + 1,) * 2, 1
    job = Trainings(ways(len(sides)), list(sides), list(epochs), seeds, topology.world)
    with Lab(topology.with_rates(round(RATE_MBIT * 1e6))) as lab, lab.spark(memory="1g") as spark:
        found = submit(spark, Path(__file__).with_name("record_job.py"), job, TIMEOUT)
    for way in job.ways:
        yield from _rows(way, [result for result in found if result["way"] == way], job, topology)


def _rows(way: str, trainings: list[dict[str, Any]], job: Trainings, topology: Topology) -> Iterator[Row]:
    def row(case: str, samples: Sequence[float], **extra: Any) -> Row:
        return Row(
            suite="record",
            case=case,
            algorithm=way,
            topology=topology.text,
            rate_mbit=RATE_MBIT,
            world=topology.world,
            bytes=4 * parameter_count(AnySize()),
            samples=samples,
            verified=all(training["verified"] for training in trainings),
            extra=extra,
        )

    for number, (side, settings) in enumerate(zip(job.sides, job.ways[way], strict=True)):
        stages = [training["stages"][number] for training in trainings]
        yield row(
            f"{side} x {side}",
            [seconds / stage["steps"] for stage in stages for seconds in stage["seconds"][_UNTIMED:]],
            strategy=settings["strategy"],
            epochs=job.epochs[number],
            rows=BATCH,
            accuracies=[stage["accuracy"][-1] for stage in stages],
        )
    times = [time_to(TARGET, training["stages"]) for training in trainings]
    yield row(
        "training",
        [seconds for seconds, _ in times],
        target=TARGET,
        reached=sum(is_reached for _, is_reached in times),
        accuracies=[training["stages"][-1]["accuracy"][-1] for training in trainings],
    )


def time_to(target: float, stages: Sequence[dict[str, list[float]]]) -> tuple[float, bool]:
    """Return the seconds of all steps up to the end of the first epoch with that accuracy, and True if there is one."""
    seconds = itertools.accumulate(each for stage in stages for each in stage["seconds"])
    total = 0.0
    for total, share in zip(seconds, (share for stage in stages for share in stage["accuracy"]), strict=True):
        if share >= target:
            return total, True
    return total, False
