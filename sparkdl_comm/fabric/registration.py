"""The paper's API inside a function that CommDistributor runs: each rank registers with one of the roles."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl_comm.collectives.communicator import Communicator
from sparkdl_comm.collectives.rank_group import RankGroup
from sparkdl_comm.conf import CommConf
from sparkdl_comm.fabric.api import Fabric, Server, StandaloneScheduler, Worker
from sparkdl_comm.fabric.params import FabricParams, SchedulerOptions


def register_as_worker(params: FabricParams, aggregators: int = 1) -> Worker:
    """See :meth:`Fabric.register_as_worker`."""
    return _current_fabric().register_as_worker(params, aggregators)


def register_as_server(params: FabricParams, model: NDArray[np.float32], shard: int = 0) -> Server:
    """See :meth:`Fabric.register_as_server`."""
    return _current_fabric().register_as_server(params, model, shard)


def register_as_replica(server: int, params: FabricParams, model: NDArray[np.float32], shard: int = 0) -> Server:
    """See :meth:`Fabric.register_as_replica`."""
    return _current_fabric().register_as_replica(server, params, model, shard)


def register_as_scheduler(params: FabricParams) -> StandaloneScheduler:
    """See :meth:`Fabric.register_as_scheduler`."""
    return _current_fabric().register_as_scheduler(params)


def _current_fabric() -> Fabric:
    return Communicator.current().once("fabric", _make_fabric, is_awaited=True)


def _make_fabric(ranks: RankGroup, conf: CommConf, device: torch.device) -> Fabric:
    return Fabric(ranks.gang, SchedulerOptions.of(conf), conf.ports)
