"""One rank of a race, over the lab's links and without Spark.

    python rank.py RENDEZVOUS_FOLDER RACE

RACE: JSON of a Race. Where it runs is in the environment (see lab.place); for what goes over gloo,
GLOO_SOCKET_IFNAME names the network interface. The rank that has the model prints a JSON line: its ``curve`` of seconds,
updates and scores; ``max_delay``, in updates, and how many were ``dropped``; ``busy``: of the machine's cores, in the mean.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from benchmarks.fabric import systems
from benchmarks.fabric.curve import Curve, Start
from benchmarks.fabric.digits import Task
from benchmarks.fabric.race import Race
from benchmarks.rendezvous import gloo_group, join_gang
from lab import Place

from sparkdl_comm.fabric.api import Fabric
from sparkdl_comm.fabric.params import FabricParams


class Ran(NamedTuple):
    """What the rank with the model has seen."""

    curve: Curve
    max_delay: int
    busy: float
    dropped: int = 0


#: None: of another rank.
Told = Ran | None


def main() -> None:
    folder, race, place = Path(sys.argv[1]), Race.of_json(sys.argv[2]), Place.here()
    torch.set_num_threads(1)
    task = race.task()
    ran = RUNS[race.system.kind](race, task, place, folder)
    if ran is not None:
        told = {**ran._asdict(), "curve": ran.curve.moments(task.score), "elements": task.elements}
        print(json.dumps(told), flush=True)


def over_fabric(race: Race, task: Task, place: Place, folder: Path) -> Told:
    params = FabricParams(race.system.sync)
    learner = task.learner(place.rank, race.workers) if place.rank < race.workers else None
    told: Told = None
    dropped = 0
    with join_gang(str(folder), place, race.timeout) as gang:
        with Fabric(gang, race.conf(str(place.topology))) as fabric:
            if learner is None:
                server = fabric.register_as_server(params, task.start())
                start = Start(folder, race.workers)
                curve = start.begin()
                systems.serve_fabric(server, curve)
                told = Ran(curve, server.largest_delay, start.busy_cores())
            else:
                worker, step = fabric.register_as_worker(params), race.step(place.rank).step
                dropped = systems.work_on_fabric(worker, race.workers, learner, race.updates, step)
        all_dropped = gang.all_gather(json.dumps(dropped).encode(), race.timeout)
        gang.wait_until_alone(race.timeout)
    return told and told._replace(dropped=sum(map(json.loads, all_dropped)))


def over_ring(race: Race, task: Task, place: Place, folder: Path) -> Told:
    conf, start = race.conf(str(place.topology)), Start(folder, race.workers)
    with join_gang(str(folder), place, race.timeout) as gang:
        curve = systems.train_by_ring(gang, conf, task, race.updates, race.step(place.rank).step, start.begin)
        told = curve and Ran(curve, race.workers, start.busy_cores())
        gang.wait_until_alone(race.timeout)
    return told


def over_ddp(race: Race, task: Any, place: Place, folder: Path) -> Told:
    start = Start(folder, race.workers)
    with gloo_group(f"{folder}/rendezvous", race.timeout):
        curve = systems.train_by_ddp(task, race.updates, race.step(place.rank).step, start.begin)
        return curve and Ran(curve, race.workers, start.busy_cores())


def plainly(race: Race, task: Task, place: Place, folder: Path) -> Told:
    learner = task.learner(place.rank, race.workers) if place.rank < race.workers else None
    with gloo_group(f"{folder}/rendezvous", race.timeout) as group:
        dist.barrier()
        if learner is None:
            start = Start(folder, race.workers)
            serving = systems.Serving(task, race.updates, start.begin())
            serving.run(group)
            return Ran(serving.curve, serving.largest_delay, start.busy_cores())
        systems.work_for_server(group, task, learner, race.updates, race.step(place.rank).step)
        return None


RUNS: dict[str, Callable[[Race, Any, Place, Path], Told]] = {
    "fabric": over_fabric,
    "ring": over_ring,
    "ddp": over_ddp,
    "async": plainly,
}


if __name__ == "__main__":
    main()
