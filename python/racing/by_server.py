"""Plain asynchronous training: a parameter server adds each update as it comes, and sends the model back at once. Transfers
share the links as TCP does, over gloo."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from racing.curve import Curve
from racing.tasks import Learner, Task

_TAG = 0


class Serving:
    """The model, and what becomes of it. ``largest_delay``: how many updates the model has had, at most, since the version
    that an update was computed from, itself included."""

    def __init__(self, task: Task, updates: int, curve: Curve) -> None:
        self._model, self._updates, self.curve = task.start(), updates, curve
        self._lock = threading.Lock()
        self.version = self.largest_delay = 0

    def run(self, group: dist.ProcessGroup) -> None:
        """Until all workers, the ranks of the group before this one, know that the model has had so many updates."""
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


def work(
    group: dist.ProcessGroup,
    task: Task,
    learner: Learner,
    updates: int,
    step: Callable[[], AbstractContextManager[None]],
) -> None:
    """Learns until the model, of the last rank of the group, has had so many updates."""
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
