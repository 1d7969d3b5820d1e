"""Which GPU a task takes, whatever Spark's discovery script calls it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_comm.errors import ConfError
from sparkdl_comm.job.gpu import gpu_index
from sparkdl_comm.job.task import RankTask

UUIDS = ["5a1b0001-aaaa-bbbb-cccc-000000000000", "5a1b0002-aaaa-bbbb-cccc-000000000000"]
FIRST, SECOND = (f"GPU-{uuid}" for uuid in UUIDS)
MIG = "MIG-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("address", "visible", "index"),
    [
        ("0", "", 0),
        ("1", "6,7", 1),  # as torch numbers them: what is visible
        (SECOND, "", 1),
        (SECOND, f"{SECOND},{FIRST}", 0),
        (FIRST, "GPU-5a1b0002, GPU-5a1b0001", 1),  # CUDA takes a beginning of it
        (MIG, MIG, 0),
        ("MIG-GPU-5a1b/3/0", "MIG-GPU-5a1b/3/0", 0),  # as older drivers name them
    ],
)
def test_the_address_that_spark_assigned(address: str, visible: str, index: int) -> None:
    # torch lists what is visible in its order
    uuids = list(reversed(UUIDS)) if visible.startswith(SECOND) else UUIDS
    assert gpu_index([address], 5, uuids, visible) == index


@pytest.mark.parametrize(("address", "visible"), [("2", ""), ("GPU-none", ""), (MIG, ""), (MIG, "MIG-9"), ("x", "0,1")])
def test_an_address_that_torch_does_not_see(address: str, visible: str) -> None:
    with pytest.raises(ConfError, match=rf"Spark assigned the GPU {address}, .*discoveryScript"):
        gpu_index([address], 0, UUIDS, visible)


def test_tasks_of_one_host_take_its_gpus_in_turn() -> None:
    hosts = ["a", "b", "a", "b", "b"]
    context: Any = SimpleNamespace(getTaskInfos=lambda: [SimpleNamespace(address=f"{host}:{7000}") for host in hosts])
    found = []
    for partition in range(len(hosts)):
        context.partitionId = lambda partition=partition: partition
        task = RankTask(SimpleNamespace(), context)  # type: ignore[arg-type]
        found.append(gpu_index([], task.index_on_host(), UUIDS, ""))
        task.close()
    assert found == [0, 0, 1, 1, 0]
