"""Synchronous training: all workers' updates are summed by a ring all-reduce, and all add the sum."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing

import torch
from racing.curve import Curve
from racing.tasks import Learner, Task

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.gang import Gang


def train(
    gang: Gang,
    conf: CommConf,
    task: Task,
    updates: int,
    step: Callable[[], AbstractContextManager[None]],
    begin: Callable[[], Curve],
) -> Curve | None:
    """Of all ranks of the gang, until the model has had so many updates.

    ``begin``: called by rank 0, when all are ready; the others have no curve.
    """
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
