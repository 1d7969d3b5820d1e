"""DDP's communication hooks where no Communicator is; see test_distributor for what they compute among ranks."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sparkdl_comm import ddp_hooks
from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.conf.compression import COMPRESSIONS
from sparkdl_comm.ddp_hooks import torch_communicator
from sparkdl_comm.errors import ConfError, GangError
from tests.unit.compression_helpers import watched

NAMES = (*ALGORITHMS, "cheapest", *COMPRESSIONS, "hitopk")


@pytest.fixture
def _group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def gradient(name, state):
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model.register_comm_hook(state, getattr(ddp_hooks, name.replace("-", "_")))
    model(torch.ones(1, 2)).sum().backward()
    return model.module.weight.grad.tolist()


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "hierarchical"])
def test_ddp_takes_them(name):
    operator = name if name in COMPRESSIONS else "topk"
    assert gradient(name, {"spark.sparkdl.comm.compression": f"{operator}:1"}) == [[1.0, 1.0]]


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize(
    ("name", "state", "runs"),
    [
        *((name, None, name) for name in COMPRESSIONS),
        ("hitopk", None, "exact"),
        ("hitopk", {"spark.sparkdl.comm.compression": "mstopk:0.5"}, "mstopk"),
    ],
)
def test_a_hook_selects_by_the_operator_of_its_name(monkeypatch, name, state, runs):
    """`hitopk` by `exact`, unless the settings name another one."""
    ran = watched(monkeypatch)
    gradient(name, state)
    assert ran == {runs}


@pytest.mark.usefixtures("_group")
def test_a_hook_and_settings_of_different_operators():
    with pytest.raises(ConfError, match=r"compression=topk:0\.5, but hook mstopk selects by mstopk"):
        gradient("mstopk", {"spark.sparkdl.comm.compression": "topk:0.5"})


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({"spark.sparkdl.comm.rail": "lo"}, "did you mean spark.sparkdl.comm.rails"),
        ({"spark.sparkdl.comm.rails": "eth77"}, "spark.sparkdl.comm.rails=eth77"),
        ({}, "star:1 has no groups of ranks"),
    ],
)
def test_what_cannot_be(state, complaint):
    with pytest.raises(ConfError, match=complaint):
        gradient("hierarchical", state)


def test_each_has_the_name_of_its_algorithm():
    missing = [name for name in NAMES if not hasattr(ddp_hooks, name.replace("-", "_"))]
    assert not missing, "give each a hook in sparkdl_comm/ddp_hooks.py"
    assert [getattr(ddp_hooks, name.replace("-", "_")).__name__ for name in NAMES] == list(NAMES)
    assert ddp_hooks.__all__ == sorted(name.replace("-", "_") for name in NAMES)


def test_without_any_ranks():
    with pytest.raises(GangError, match="there is no Communicator here"):
        torch_communicator(None, torch.device("cpu"))
