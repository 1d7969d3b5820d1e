"""Choice of the engine for a gang's collectives."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from sparkdl_comm.collectives.engine.base import Engine
from sparkdl_comm.collectives.engine.links import Links
from sparkdl_comm.collectives.engine.sockets import SocketEngine
from sparkdl_comm.collectives.engine.torch_p2p import TorchEngine, process_group_of
from sparkdl_comm.gang.gang import Gang


def make_engine(
    gang: Gang, name: str, order: Sequence[int], rails: Sequence[int], device: torch.device, timeout: float
) -> Engine[Any]:
    """Return this rank's engine: over sockets and the rails for CPU tensors, over torch.distributed for others.

    :param name: name of the engine; each engine of a gang has its own.
    :param order: ``order[place]``: the gang's rank that is rank ``place`` of the plans. It may leave out ranks.
    :param rails: ``rails[rail]``: the gang's rail that is rail ``rail`` of the plans.
    :param timeout: seconds to connect, and seconds for which a collective may make no progress.
    """
    place = order.index(gang.rank)
    if device.type != "cpu":
        return TorchEngine(place, order, device, process_group_of(order, timeout))
    engine = SocketEngine(place, Links(gang, name, order, rails, timeout), timeout)
    # Weak reference: the gang may outlive the engine, which holds memory and plans.
    reference = weakref.ref(engine)
    gang.close_in_children(lambda: [] if (live := reference()) is None else live.sockets())
    gang.on_failure(lambda failure: None if (live := reference()) is None else live.abort(failure.to_exception()))
    return engine
