"""One rank of a race, over the lab's links and without Spark.

    python rank.py RENDEZVOUS_FOLDER RACE

RACE: JSON of a Race. Where it runs is in the environment (see lab.place); for what goes over gloo,
GLOO_SOCKET_IFNAME names the network interface. The rank that has the model prints a JSON line: its ``curve`` of seconds,
updates and scores; ``max_delay``, in updates, and how many were ``dropped``; ``busy``: of the machine's cores, in the mean.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from lab import Place
from peers.rendezvous import join_gang
from racing import by_ddp, by_fabric, by_ring, by_server
from racing.curve import Curve
from racing.race import Race
from racing.start import Start
from racing.tasks import Task

from sparkdl_comm.fabric.api import Fabric
from sparkdl_comm.fabric.params import FabricParams, SchedulerOptions


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
    options = SchedulerOptions.of(race.conf(str(place.topology)))
    params = FabricParams(race.system.sync)
    learner = task.learner(place.rank, race.workers) if place.rank < race.workers else None
    told: Told = None
    dropped = 0
    with join_gang(str(folder), place, race.timeout) as gang:
        with Fabric(gang, options) as fabric:
            if learner is None:
                server = fabric.register_as_server(params, task.start())
                start = Start(folder, race.workers)
                curve = start.begin()
                by_fabric.serve(server, curve)
                told = Ran(curve, server.largest_delay, start.busy_cores())
            else:
                worker, step = fabric.register_as_worker(params), race.step(place.rank).step
                dropped = by_fabric.work(worker, race.workers, learner, race.updates, step)
        all_dropped = gang.all_gather(json.dumps(dropped).encode(), race.timeout)
        gang.wait_until_alone(race.timeout)
    return told and told._replace(dropped=sum(map(json.loads, all_dropped)))


def over_ring(race: Race, task: Task, place: Place, folder: Path) -> Told:
    conf, start = race.conf(str(place.topology)), Start(folder, race.workers)
    with join_gang(str(folder), place, race.timeout) as gang:
        curve = by_ring.train(gang, conf, task, race.updates, race.step(place.rank).step, start.begin)
        told = curve and Ran(curve, race.workers, start.busy_cores())
        gang.wait_until_alone(race.timeout)
    return told


def over_ddp(race: Race, task: Any, place: Place, folder: Path) -> Told:
    start = Start(folder, race.workers)
    with gloo(race, place, folder):
        curve = by_ddp.train(task, race.updates, race.step(place.rank).step, start.begin)
        return curve and Ran(curve, race.workers, start.busy_cores())


def plainly(race: Race, task: Task, place: Place, folder: Path) -> Told:
    learner = task.learner(place.rank, race.workers) if place.rank < race.workers else None
    with gloo(race, place, folder) as group:
        dist.barrier()
        if learner is None:
            start = Start(folder, race.workers)
            serving = by_server.Serving(task, race.updates, start.begin())
            serving.run(group)
            return Ran(serving.curve, serving.largest_delay, start.busy_cores())
        by_server.work(group, task, learner, race.updates, race.step(place.rank).step)
        return None


@contextmanager
def gloo(race: Race, place: Place, folder: Path) -> Iterator[dist.ProcessGroup]:
    """All ranks join, and leave together."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=place.rank,
        world_size=place.world,
        timeout=timedelta(seconds=race.timeout),
    )
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.barrier()
    dist.destroy_process_group()


RUNS: dict[str, Callable[[Race, Any, Place, Path], Told]] = {
    "fabric": over_fabric,
    "ring": over_ring,
    "ddp": over_ddp,
    "async": plainly,
}


if __name__ == "__main__":
    main()
