"""Rank program of a race, over the lab's links and without Spark.

The rank with the model prints a JSON line: its ``curve`` of seconds, updates and scores; ``max_delay`` and ``dropped``, in
updates; ``busy``, the machine's busy cores in the mean; ``elements`` of the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from benchmarks.fabric import systems
from benchmarks.fabric.curve import Curve, Start
from benchmarks.fabric.digits import Task
from benchmarks.fabric.races import Race, System
from benchmarks.ranks import gloo_group, join_gang, rank_job
from lab import Place

from sparkdl_comm.fabric.api import Fabric
from sparkdl_comm.fabric.params import FabricParams

#: Result of the rank with the model. The other ranks have none.
Result = dict[str, Any] | None


def main() -> None:
    folder, race, place = rank_job(Race)
    task, start = race.task(), Start(Path(race.begun), race.workers)
    result = RUNS[System.parse(race.system).kind](race, task, place, folder, start)
    if result is not None:
        scored = {"curve": result["curve"].moments(task.score), "elements": task.elements}
        print(json.dumps(result | scored), flush=True)


def _result(curve: Curve | None, start: Start, max_delay: int) -> Result:
    return curve and {"curve": curve, "max_delay": max_delay, "busy": start.busy_cores(), "dropped": 0}


def over_fabric(race: Race, task: Task, place: Place, folder: str, start: Start) -> Result:
    params = FabricParams(System.parse(race.system).sync)
    learner = task.learner(place.rank, race.workers) if place.rank < race.workers else None
    result: Result = None
    dropped = 0
    with join_gang(folder, place, race.timeout) as gang:
        with Fabric(gang, race.conf(str(place.topology))) as fabric:
            if learner is None:
                server = fabric.register_as_server(params, task.start())
                curve = start.begin()
                systems.serve_fabric(server, curve)
                result = _result(curve, start, server.largest_delay)
            else:
                worker, step = fabric.register_as_worker(params), race.step(place.rank).step
                dropped = systems.work_on_fabric(worker, race.workers, learner, race.updates, step)
        all_dropped = gang.all_gather(json.dumps(dropped).encode(), race.timeout)
    return result and {**result, "dropped": sum(map(json.loads, all_dropped))}


def over_ring(race: Race, task: Task, place: Place, folder: str, start: Start) -> Result:
    with join_gang(folder, place, race.timeout) as gang:
        conf, step = race.conf(str(place.topology)), race.step(place.rank).step
        return _result(systems.train_by_ring(gang, conf, task, race.updates, step, start.begin), start, race.workers)


def over_ddp(race: Race, task: Any, place: Place, folder: str, start: Start) -> Result:
    with gloo_group(folder, race.timeout):
        curve = systems.train_by_ddp(task, race.updates, race.step(place.rank).step, start.begin)
        return _result(curve, start, race.workers)


def without_schedule(race: Race, task: Task, place: Place, folder: str, start: Start) -> Result:
    learner = task.learner(place.rank, race.workers) if place.rank < race.workers else None
    with gloo_group(folder, race.timeout) as group:
        dist.barrier()
        if learner is None:
            serving = systems.Serving(task, race.updates, start.begin())
            serving.run(group)
            return _result(serving.curve, start, serving.largest_delay)
        systems.work_for_server(group, task, learner, race.updates, race.step(place.rank).step)
        return None


RUNS: dict[str, Callable[[Race, Any, Place, str, Start], Result]] = {
    "fabric": over_fabric,
    "ring": over_ring,
    "ddp": over_ddp,
    "async": without_schedule,
}


if __name__ == "__main__":
    main()
