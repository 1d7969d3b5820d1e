"""Training over the fabric: a rank has the model, others learn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
from racing.curve import Curve
from racing.tasks import Learner

from sparkdl_comm.fabric.api import Server, Worker


def serve(server: Server, curve: Curve) -> None:
    """Adds updates to the model until all workers have left."""
    updates = 0

    def add(model: np.ndarray, update: np.ndarray, count: int) -> None:
        nonlocal updates
        model += update
        updates += count
        curve.add(updates, model)

    server.register_update_callback(add)
    server.serve()


def work(
    worker: Worker, server: int, learner: Learner, updates: int, step: Callable[[], AbstractContextManager[None]]
) -> int:
    """Learns until the model has had so many updates.

    :param server: its rank.
    :param step: what a step's computing is done in.
    :return: how many updates of this worker were dropped.
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
