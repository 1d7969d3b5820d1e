"""One rank of a race, over the lab's links and without Spark.

    python rank.py RENDEZVOUS_FOLDER RACE

RACE: JSON of a Race. Where it runs is in the environment (see sparkdl_comm.lab.place); for what goes over gloo,
GLOO_SOCKET_IFNAME names the network interface. The rank that has the model prints a JSON line: its ``curve`` of seconds,
updates and scores; ``max_delay``, in updates, and how many were ``dropped``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from peers.rendezvous import join_gang
from racing import by_ddp, by_fabric, by_ring, by_server
from racing.curve import Curve
from racing.race import Race
from racing.tasks import Task

from sparkdl_comm.fabric.options import Options
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.roles import Fabric
from sparkdl_comm.lab import Place

#: What the rank with the model tells; None: another rank.
Told = dict[str, Any] | None


def main() -> None:
    folder, race, place = sys.argv[1], Race.of_json(sys.argv[2]), Place.here()
    torch.set_num_threads(1)
    told = RUNS[race.system.kind](race, race.task(), place, folder)
    if told is not None:
        print(json.dumps(told), flush=True)


def over_fabric(race: Race, task: Task, place: Place, folder: str) -> Told:
    conf, params = race.conf(str(place.topology)), FabricParams(race.system.sync)
    with join_gang(folder, place, race.timeout) as gang:
        with Fabric(gang, Options.of(conf)) as fabric:
            dropped, curve = 0, None
            if place.rank == race.workers:
                server = fabric.register_as_server(params, task.start())
                curve = Curve(race.workers)
                by_fabric.serve(server, curve)
            else:
                worker, learner = fabric.register_as_worker(params), task.learner(place.rank, race.workers)
                step = race.step(place.rank).step
                dropped = by_fabric.work(worker, race.workers, learner, race.updates, step)
        total = sum(json.loads(text) for text in gang.all_gather(json.dumps(dropped).encode(), race.timeout))
        gang.outlast(race.timeout)
    return None if curve is None else _told(curve, task, server.largest_delay, total)


def over_ring(race: Race, task: Task, place: Place, folder: str) -> Told:
    with join_gang(folder, place, race.timeout) as gang:
        curve = by_ring.train(gang, race.conf(str(place.topology)), task, race.updates, race.step(place.rank).step)
        gang.outlast(race.timeout)
    return None if place.rank else _told(curve, task, race.workers)


def over_ddp(race: Race, task: Task, place: Place, folder: str) -> Told:
    join_gloo(race, place, folder)
    curve = by_ddp.train(task, race.updates, race.step(place.rank).step)
    dist.barrier()
    dist.destroy_process_group()
    return None if place.rank else _told(curve, task, race.workers)


def plainly(race: Race, task: Task, place: Place, folder: str) -> Told:
    group = join_gloo(race, place, folder)
    told: Told = None
    if place.rank == race.workers:
        dist.barrier()
        serving = by_server.Serving(task, race.updates, Curve(race.workers))
        serving.run(group)
        told = _told(serving.curve, task, serving.largest_delay)
    else:
        learner = task.learner(place.rank, race.workers)
        dist.barrier()
        by_server.work(group, task, learner, race.updates, race.step(place.rank).step)
    dist.barrier()
    dist.destroy_process_group()
    return told


def join_gloo(race: Race, place: Place, folder: str) -> dist.ProcessGroup:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=place.rank,
        world_size=place.world,
        timeout=timedelta(seconds=race.timeout),
    )
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def _told(curve: Curve, task: Task, max_delay: int, dropped: int = 0) -> dict[str, Any]:
    return {"curve": curve.moments(task.score), "max_delay": max_delay, "dropped": dropped, "elements": task.elements}


RUNS: dict[str, Callable[[Race, Any, Place, str], Told]] = {
    "fabric": over_fabric,
    "ring": over_ring,
    "ddp": over_ddp,
    "async": plainly,
}


if __name__ == "__main__":
    main()
