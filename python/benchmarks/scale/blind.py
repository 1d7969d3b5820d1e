"""Cells that are simulated before the lab measures them: collectives on topologies, at rates and of sizes that no other
result has. `--validate` fits the simulator's parameters.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.collectives.run import own
from benchmarks.scale import validation
from lab.bench import Row

from sparkdl_comm.collectives.cost import Cost, predict
from sparkdl_comm.collectives.plan import Collective, Operation
from sparkdl_comm.sim.step_run import ITEMSIZE
from sparkdl_comm.topology import Topology

MIB = 1 << 20
CALLS = 3
#: Predictions are written here before anything is measured.
PREDICTIONS = Path("build/blind-predictions.json")


@dataclass(frozen=True)
class Group:
    """Cells of one run: an algorithm's operations of several sizes. ``rate``: Mbit/s."""

    topology: str
    rate: float
    algorithm: str
    sizes: tuple[int, ...]
    operations: tuple[Operation, ...] = ("all_reduce",)

    @property
    def links(self) -> Topology:
        return Topology.parse(self.topology).with_rates(round(self.rate * 1e6))


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


def rows(options: Namespace, note: Callable[[str], None]) -> Iterator[Row]:
    """Predict all cells, then measure them. Yield a row of results for each cell, and note the errors."""
    groups = GROUPS[:1] if options.quick else GROUPS
    parameters = validation.fitted_parameters()
    predicted = {
        (group, operation, nbytes): _predicted(group, operation, nbytes)(parameters)
        for group in groups
        for operation in group.operations
        for nbytes in group.sizes
    }
    cells = [
        {**asdict(group), "operation": operation, "bytes": nbytes, "seconds": seconds}
        for (group, operation, nbytes), seconds in predicted.items()
    ]
    written = {"written": datetime.now(timezone.utc).isoformat(), "parameters": asdict(parameters), "cells": cells}
    PREDICTIONS.parent.mkdir(parents=True, exist_ok=True)
    PREDICTIONS.write_text(json.dumps(written, indent=1))
    note(f"{len(predicted)} predictions are in {PREDICTIONS}")
    errors = []
    for group in groups:
        for row in _measured(group, options):
            operation: Operation = "all_reduce" if row.case == "allreduce" else row.case
            seconds = predicted[group, operation, row.bytes]
            error = seconds / row.seconds - 1
            errors.append(abs(error))
            yield replace(row, suite="sim", extra={**row.extra, "simulated": seconds, "error": error})
    note(validation.errors_text("blind", errors))


def _predicted(group: Group, operation: Operation, nbytes: int) -> validation.Simulated:
    """Return the simulation of a cell, in the blocks of the run."""
    topology, count = group.links, nbytes // ITEMSIZE
    block = predict(group.algorithm, operation, topology, count, ITEMSIZE, Cost.of(topology)).block
    collective = Collective(operation, topology, count, block=max(1, block // ITEMSIZE))
    return validation.collective_seconds(group.algorithm, collective, CALLS)


def _measured(group: Group, options: Namespace) -> Iterator[Row]:
    run = Namespace(
        rate=[group.rate],
        algorithms=[group.algorithm],
        operations=list(group.operations),
        bytes=list(group.sizes),
        block=[0],
        calls=CALLS,
        warmup=1,
        repeats=options.repeats,
        loopback=False,
    )
    yield from own(run, group.links)
