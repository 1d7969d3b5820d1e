"""Systems that race: the fabric, a ring all-reduce, DistributedDataParallel, and a parameter server without a schedule.

That server adds each update on arrival, and sends the model back at once, over gloo. Transfers share the links like TCP.
The ring and DDP are synchronous: all workers add the sum of all updates. A curve has copies of the model
from the race, which are evaluated when it is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch
import torch.distributed as dist
from benchmarks.fabric.digits import Digits, Learner, Task
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.conf import CommConf
from sparkdl_comm.fabric.server import Server
from sparkdl_comm.fabric.worker import Worker
from sparkdl_comm.gang.gang import Gang

#: Seconds after which a file is looked for again.
_LOOK_AGAIN = 0.01


class Start:
    """Beginning of a race. Links begin to change then, so that all systems meet the same rates at the same time.

    :param file: file that the beginning makes, known to all processes of the race.
    :param every: updates after which the model is copied.
    """

    def __init__(self, file: Path, every: int) -> None:
        self._file, self._every = file, every
        self._begun = self._spare = 0.0

    def begin(self) -> Curve:
        """Begin the race, at the rank whose clock counts, once all are ready."""
        self._file.touch()
        self._begun, self._spare = time.monotonic(), _spare_seconds()
        return Curve(self._every)

    def wait(self, over: threading.Event) -> None:
        """Wait until the race has begun, or ``over`` is set."""
        while not self._file.exists() and not over.wait(_LOOK_AGAIN):
            pass

    def busy_cores(self) -> float:
        """Return the mean number of the machine's busy cores since the beginning. Low-priority work does not count."""
        cores = psutil.cpu_count() or 1
        busy = cores - (_spare_seconds() - self._spare) / (time.monotonic() - self._begun)
        return min(max(busy, 0.0), float(cores))  # the system counts in hundredths of a second


def _spare_seconds() -> float:
    """Return the idle seconds of all cores together."""
    times = psutil.cpu_times()
    return float(times.idle + times.nice + getattr(times, "iowait", 0.0))


class Moment(NamedTuple):
    """Score of a copy. ``seconds`` since the beginning; ``updates`` in the model then."""

    seconds: float
    updates: int
    score: float


class Curve:
    """Copies of a model with their times, seconds since the curve was made.

    :param every: updates after which the model is copied.
    """

    def __init__(self, every: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock, self._begun = every, clock, clock()
        self._copies: list[tuple[float, int, np.ndarray]] = []

    def add(self, updates: int, model: np.ndarray) -> None:
        """Record that the model, float32 ``[n]``, now has so many updates."""
        if not self._copies or updates // self._every > self._copies[-1][1] // self._every:
            self._copies.append((self._clock() - self._begun, updates, model.copy()))

    @property
    def last(self) -> np.ndarray | None:
        """Last copy of the model, or None."""
        return self._copies[-1][2] if self._copies else None

    def moments(self, score: Callable[[np.ndarray], float]) -> list[Moment]:
        return [Moment(seconds, updates, score(model)) for seconds, updates, model in self._copies]


def first(moments: list[Moment], reached: Callable[[float], bool]) -> Moment | None:
    """Return the first moment whose score has reached the goal, or None."""
    return next((moment for moment in moments if reached(moment.score)), None)


#: Context of a step's computing.
Step = Callable[[], AbstractContextManager[None]]
#: Begins the race: called by rank 0 when all are ready. The other ranks have no curve.
Begin = Callable[[], Curve]
_TAG = 0


def serve_fabric(server: Server, curve: Curve) -> None:
    """Add updates to the model until all workers have left."""
    updates = 0

    def add(model: np.ndarray, update: np.ndarray, count: int) -> None:
        nonlocal updates
        model += update
        updates += count
        curve.add(updates, model)

    server.register_update_callback(add)
    server.serve()


def work_on_fabric(worker: Worker, server: int, learner: Learner, updates: int, step: Step) -> int:
    """Learn until the model has had so many updates.

    :param server: rank of the server.
    :return: number of this worker's dropped updates.
    """
    model = np.empty(worker.elements, np.float32)
    dropped = 0
    while worker.get(server, model) < updates:
        with step():
            update = learner.update(model)
        applied = worker.push(server, update).wait().version is not None
        learner.settle(applied)
        dropped += not applied
    return dropped


def train_by_ring(gang: Gang, conf: CommConf, task: Task, updates: int, step: Step, begin: Begin) -> Curve | None:
    """Train in all ranks of the gang until the model has had so many updates."""
    learner: Learner = task.learner(gang.rank, gang.world)
    model = task.start()
    with closing(CollectiveGroup(gang, "ring", conf)) as group:
        group.prepare("all_reduce", task.elements, torch.float32)
        gang.all_gather(b"", conf.timeout)
        curve = begin() if gang.rank == 0 else None
        for number in range(1, 1 + updates // gang.world):
            with step():
                total = torch.from_numpy(learner.update(model))
            group.start("all_reduce", total).wait(conf.timeout)
            learner.settle(True)
            model += total.numpy()
            if curve is not None:
                curve.add(number * gang.world, model)
    return curve


def train_by_ddp(task: Digits, updates: int, step: Step, begin: Begin) -> Curve | None:
    """Train by torch's DistributedDataParallel in all ranks of the process group.

    DDP averages gradients where others add them, so the learning rate is multiplied by the number of ranks. The backward
    pass, in which DDP sends, is not in ``step``.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = task.rows(rank, world)
    parallel = DistributedDataParallel(task.module())
    optimizer = torch.optim.SGD(parallel.parameters(), lr=task.rate * world)
    dist.barrier()
    curve = begin() if rank == 0 else None
    for number in range(1, 1 + updates // world):
        optimizer.zero_grad()
        with step():
            loss = rows.loss(parallel)
        loss.backward()
        optimizer.step()
        if curve is not None:
            curve.add(number * world, parameters_to_vector(parallel.parameters()).detach().numpy())
    return curve


class Serving:
    """Parameter server without a schedule. ``largest_delay``: largest delay of an update, in updates, including itself."""

    def __init__(self, task: Task, updates: int, curve: Curve) -> None:
        self._model, self._updates, self.curve = task.start(), updates, curve
        self._lock = threading.Lock()
        self.version = self.largest_delay = 0

    def run(self, group: dist.ProcessGroup) -> None:
        """Serve until all workers, the ranks before this one, know that the model has had all updates."""
        workers = group.rank()
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(self._attend, group, worker) for worker in range(workers)]:
                done.result()

    def _attend(self, group: dist.ProcessGroup, worker: int) -> None:
        update = torch.empty(len(self._model))
        while True:
            with self._lock:
                base, model = self.version, self._model.copy()
            group.send([torch.tensor([base])], worker, _TAG).wait()
            group.send([torch.from_numpy(model)], worker, _TAG).wait()
            if base >= self._updates:
                return
            group.recv([update], worker, _TAG).wait()
            with self._lock:
                self._model += update.numpy()
                self.version += 1
                self.largest_delay = max(self.largest_delay, self.version - base)
                self.curve.add(self.version, self._model)


def work_for_server(group: dist.ProcessGroup, task: Task, learner: Learner, updates: int, step: Step) -> None:
    """Learn until the model, at the last rank of the group, has had so many updates."""
    server = group.size() - 1
    version, model = torch.zeros(1, dtype=torch.int64), torch.empty(task.elements)
    while True:
        group.recv([version], server, _TAG).wait()
        group.recv([model], server, _TAG).wait()
        if version.item() >= updates:
            return
        with step():
            update = learner.update(model.numpy())
        learner.settle(True)
        group.send([torch.from_numpy(update)], server, _TAG).wait()
