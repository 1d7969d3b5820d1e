"""Cells that nobody has measured: collectives on topologies, at rates and of sizes that no result has. They are simulated
first, with the parameters that `--validate` fits, and what comes out is written down; then the lab measures them, by
the benchmark `collectives`.
"""

from __future__ import annotations

import json
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.collectives.run import own
from benchmarks.scale import validation
from lab.bench import Row

from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.plan import Collective, Operation
from sparkdl_comm.collectives.select import predict
from sparkdl_comm.sim.step_run import ITEMSIZE
from sparkdl_comm.topology import Topology

MIB = 1 << 20
#: Calls of a repeat, and how many repeats are timed.
CALLS, REPEATS = 3, 3


@dataclass(frozen=True)
class Group:
    """Cells of one run: an algorithm's operations of several sizes."""

    topology: str
    rate_mbit: float
    algorithm: str
    sizes: tuple[int, ...]
    operations: tuple[Operation, ...] = ("all_reduce",)


GROUPS = (
    Group("star:5", 130.0, "ring", (3 * MIB, 10 * MIB)),
    Group("star:5", 130.0, "lp", (3 * MIB, 10 * MIB), ("broadcast", "all_reduce")),
    Group("star:6", 70.0, "be", (2 * MIB, 6 * MIB)),
    Group("star:6", 70.0, "tree", (2 * MIB, 6 * MIB)),
    Group("star:4", 300.0, "mst", (5 * MIB,), ("broadcast", "reduce")),
    Group("star:4", 300.0, "p2p-ps", (5 * MIB, 20 * MIB)),
    Group("bcube:2,2", 90.0, "bml", (5 * MIB, 12 * MIB)),
    Group("bcube:3,2", 120.0, "bml", (2 * MIB, 9 * MIB)),
    Group("hosts:3x2", 110.0, "torus2d", (3 * MIB, 7 * MIB)),
    Group("hosts:3x2", 110.0, "hierarchical", (3 * MIB, 7 * MIB)),
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--blind", action="store_true", help="cells that are simulated first, and then measured")
    parser.add_argument(
        "--predictions",
        type=Path,
        default=Path("build/blind-predictions.json"),
        help="of --blind: written before it measures",
    )


def rows(options: Namespace, note: Callable[[str], None]) -> Iterator[Row]:
    """A row for each cell, and a note of the errors."""
    groups = GROUPS[:1] if options.quick else GROUPS
    parameters = validation.fitted_parameters()
    predicted = {
        (group, operation, nbytes): validation.collective_seconds(
            group.algorithm, _collective(group, operation, nbytes), CALLS
        )(parameters)
        for group in groups
        for operation in group.operations
        for nbytes in group.sizes
    }
    told = [
        {**asdict(group), "operation": operation, "bytes": nbytes, "seconds": seconds}
        for (group, operation, nbytes), seconds in predicted.items()
    ]
    written = {"written": datetime.now(timezone.utc).isoformat(), "parameters": asdict(parameters), "cells": told}
    options.predictions.parent.mkdir(parents=True, exist_ok=True)
    options.predictions.write_text(json.dumps(written, indent=1))
    note(f"{len(predicted)} predictions are in {options.predictions}")
    errors = []
    for group in groups:
        for row in _measured(group, options):
            operation: Operation = "all_reduce" if row.case == "allreduce" else row.case
            seconds = predicted[group, operation, row.bytes]
            error = seconds / row.seconds - 1
            errors.append(abs(error))
            yield replace(row, suite="sim", extra={**row.extra, "simulated": seconds, "error": error})
    note(validation.told("blind", errors))


def _topology(group: Group) -> Topology:
    return Topology.parse(group.topology).with_rates(round(group.rate_mbit * 1e6))


def _collective(group: Group, operation: Operation, nbytes: int) -> Collective:
    """In the blocks that the run has."""
    topology, count = _topology(group), nbytes // ITEMSIZE
    block = predict(group.algorithm, operation, topology, count, ITEMSIZE, Cost.of(topology)).block
    return Collective(operation, topology, count, block=max(1, block // ITEMSIZE))


def _measured(group: Group, options: Namespace) -> Iterator[Row]:
    asked = Namespace(
        rate=[group.rate_mbit],
        algorithms=[group.algorithm],
        operations=list(group.operations),
        bytes=list(group.sizes),
        block=[0],
        calls=CALLS,
        warmup=1,
        repeats=1 if options.quick else REPEATS,
        timeout=120.0,
        loopback=False,
    )
    with tempfile.TemporaryDirectory(prefix="sparkdl-blind-") as folder:
        yield from own(asked, _topology(group), Path(folder))
