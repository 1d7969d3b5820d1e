"""What is done on every rank of a gang of threads, over real sockets on loopback addresses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.conf import CommConf
from sparkdl_comm.topology import Topology
from tests.unit.gang_helpers import SECONDS, gang_of


def conf(**settings: Any) -> CommConf:
    return CommConf.from_mapping({}, timeout=f"{SECONDS}s", **settings)


def on_all(gangs: list[Any], work: Callable[[Any], Any]) -> list[Any]:
    """What ``work(gang)`` returned, or raised, at each rank; all at once."""
    results: list[Any] = [None] * len(gangs)

    def one(rank: int) -> None:
        try:
            results[rank] = work(gangs[rank])
        except BaseException as exc:  # noqa: BLE001 - looked at by the test
            results[rank] = exc

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(len(gangs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    return results


def in_groups(topology: str, algorithm: str, work: Callable[[CollectiveGroup, int], Any], **settings: Any) -> list[Any]:
    """What ``work(group, rank)`` returned at each rank of a gang on this topology; raises what a rank raised."""
    rails = ("lo",) * Topology.parse(topology).rails

    def one(gang: Any) -> Any:
        group = CollectiveGroup(gang, algorithm, conf(topology=topology, rails=rails, **settings))
        try:
            return work(group, gang.rank)
        finally:
            gang.all_gather(b"", SECONDS)
            group.close()

    return in_gang(topology, rails, one)


def in_gang(topology: str, rails: tuple[str, ...], work: Callable[[Any], Any]) -> list[Any]:
    """What ``work(gang)`` returned at each rank of a gang with as many ranks as the topology; raises what a rank raised."""
    with gang_of(Topology.parse(topology).world, rails=rails) as gangs:
        results = on_all(gangs, work)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def vector(rank: int, count: int = 1001, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, whose sums are exact in every dtype."""
    return ((torch.arange(count) * (rank + 3)) % 7).to(dtype)
