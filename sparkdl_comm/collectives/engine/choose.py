"""Which engine a gang's collectives run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparkdl_comm.collectives.engine.base import Engine
from sparkdl_comm.collectives.engine.links import Links
from sparkdl_comm.collectives.engine.sockets import SocketEngine
from sparkdl_comm.collectives.engine.torch_p2p import TorchEngine
from sparkdl_comm.gang.gang import Gang


def make_engine(gang: Gang, name: str, order: Sequence[int], device: torch.device, timeout: float) -> Engine[Any]:
    """This rank's: over sockets and all rails for tensors of the CPU, by torch.distributed's default group for others.

    :param name: of the engine; of a gang's engines each has another.
    :param order: ``order[place]``: the gang's rank that is rank ``place`` of the plans.
    :param timeout: seconds to connect, and for which a collective may stand still.
    """
    place = order.index(gang.rank)
    if device.type != "cpu":
        return TorchEngine(place, order, device)
    engine = SocketEngine(place, Links(gang, name, order, timeout), timeout)
    gang.close_in_children(engine.sockets)
    gang.on_failure(lambda failure: engine.abort(failure.to_exception()))
    return engine
