"""Plans by torch.distributed's sends and receives between GPUs, by NCCL; and DDP's hooks over them."""

from __future__ import annotations

import datetime
import os
import traceback
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparkdl_comm import ddp_hooks
from tests.unit.collectives.test_torch_engine import ORDER, WORLD, check_ops, check_plans, run_plans, run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

GPU = torch.device("cuda", 0)
HOOKS = ("cheapest", "ring", "lp", "be", "mst", "mstopk")
EVERYTHING = {"spark.sparkdl.comm.compression": "mstopk:1"}


def rank_program(rank: int, rendezvous: str, pipe: Connection) -> None:
    os.environ |= {"NCCL_HOSTID": f"rank {rank}", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    try:
        torch.cuda.set_device(GPU)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=WORLD,
            timeout=datetime.timedelta(seconds=120),
        )
        found = run_plans(ORDER.index(rank), GPU)
        pipe.send((*found, {name: trained(rank, name) for name in (None, *HOOKS)}))
        dist.barrier()
        dist.destroy_process_group()
    except Exception as exc:  # noqa: BLE001 - looked at by the test
        pipe.send("".join(traceback.format_exception(exc)))


def trained(rank: int, hook: str | None) -> list[float]:
    """The parameters after three steps of DDP with that hook, or with DDP's own all-reduce."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 1)).to(GPU)
    model = DistributedDataParallel(module, bucket_cap_mb=0.001)
    if hook is not None:
        model.register_comm_hook(EVERYTHING, getattr(ddp_hooks, hook))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(16, 20).to(GPU)).square().mean().backward()
        optimizer.step()
    values: list[float] = nn.utils.parameters_to_vector(module.parameters()).tolist()
    return values


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """By place in the plans."""
    found = run_ranks(rank_program, tmp_path_factory.mktemp("nccl") / "rendezvous", 200)
    assert not any(isinstance(each, str) for each in found), found
    return found


def test_all_plans_give_what_the_socket_engine_gives(results: list[Any]) -> None:
    check_plans([found for found, *_ in results])


def test_ops_and_half_precision(results: list[Any]) -> None:
    check_ops([ops for _, ops, *_ in results], [half for _, _, half, _ in results])


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_find_what_ddp_finds(results: list[Any], hook: str) -> None:
    for *_, found in results:
        assert found[hook] == results[0][-1][hook], "all ranks alike"
        expected = torch.tensor(found[None])
        assert (torch.tensor(found[hook]) - expected).norm() / expected.norm() <= 1e-5
