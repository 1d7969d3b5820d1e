"""DDP's communication hooks; see test_distributor for what they compute."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.errors import GangError
from sparkdl_comm.train import hooks


@pytest.fixture
def _group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("name", [*ALGORITHMS, "auto"])
def test_ddp_takes_them(name):
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model.register_comm_hook(None, getattr(hooks, name.replace("-", "_")))
    with pytest.raises(GangError, match="there is no Communicator here"):
        model(torch.ones(1, 2)).sum().backward()
