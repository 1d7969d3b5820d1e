"""Fabrics on loopback: real sockets, daemons and schedulers, aggregators in processes of their own, ranks in threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl_comm.conf import CommConf
from sparkdl_comm.fabric.api import Fabric
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.server import Server
from sparkdl_comm.fabric.worker import PushOutcome, Worker
from tests.unit.collective_helpers import on_all
from tests.unit.gang_helpers import SECONDS, gang_of

ELEMENTS = 1000
INTERVAL = 0.01
#: The rank that most tests have as their server.
SERVER = 1


def conf(**changes: Any) -> CommConf:
    settings = {"timeout": SECONDS, "fabric_batch_interval": INTERVAL, "fabric_replica_aggregators": 0, **changes}
    return CommConf.from_mapping({}, fabric_link_rate="1gbit", **settings)


@dataclass
class Ranked:
    rank: int
    fabric: Fabric

    def run(self, parts: list[Callable[[Fabric], Any]]) -> Any:
        return parts[self.rank](self.fabric)


@contextmanager
def fabrics_of(world: int, rails: int = 1, **changes: Any):
    with gang_of(world, rails=("lo",) * rails) as gangs:
        made = [Fabric(gang, conf(**changes)) for gang in gangs]
        try:
            yield made
        finally:
            for fabric in reversed(made):  # the scheduler last
                fabric.close()


def run(parts: list[Callable[[Fabric], Any]], rails: int = 1, **changes: Any) -> tuple[list[Any], list[Fabric]]:
    """What each part, that of the rank with its number, returned or raised."""
    with fabrics_of(len(parts), rails, **changes) as fabrics:
        results = on_all([Ranked(rank, fabric) for rank, fabric in enumerate(fabrics)], lambda each: each.run(parts))
    return results, fabrics


def raised(results: list[Any]) -> None:
    for result in results:
        if isinstance(result, BaseException):
            raise result


def scheduler(params: FabricParams) -> Callable[[Fabric], None]:
    return lambda fabric: fabric.register_as_scheduler(params).await_end(SECONDS)


def server(params: FabricParams, elements: int = ELEMENTS, shard: int = 0) -> Callable[[Fabric], Server]:
    def serve(fabric: Fabric) -> Server:
        made = fabric.register_as_server(params, np.zeros(elements, np.float32), shard)
        made.serve(SECONDS)
        return made

    return serve


def replica(of: int, params: FabricParams, elements: int = ELEMENTS) -> Callable[[Fabric], Server]:
    def serve(fabric: Fabric) -> Server:
        made = fabric.register_as_replica(of, params, np.zeros(elements, np.float32))
        made.serve(SECONDS)
        return made

    return serve


def worker(params: FabricParams, work: Callable[[Worker], Any], aggregators: int = 0) -> Callable[[Fabric], Any]:
    def compute(fabric: Fabric) -> Any:
        with fabric:
            return work(fabric.register_as_worker(params, aggregators))

    return compute


def pushing(count: int, value: float = 1.0) -> Callable[[Worker], list[PushOutcome]]:
    """Gets the model and pushes so many updates, all ``value``, one after the other; the outcomes."""

    def work(made: Worker) -> list[PushOutcome]:
        model, outcomes = np.empty(made.elements, np.float32), []
        for _ in range(count):
            made.get(SERVER, model)
            outcomes.append(made.push(SERVER, np.full(made.elements, value, np.float32)).wait())
        return outcomes

    return work
