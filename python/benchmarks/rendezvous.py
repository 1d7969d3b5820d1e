"""Rendezvous of a benchmark's ranks on the lab, without Spark: by files in a folder."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from lab import Place

from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.gang.gang import Gang


def join_gang(folder: str, place: Place, seconds: float, host: str | None = None) -> Gang:
    """Join the gang of all ranks with the same folder.

    :param host: address for control messages. None: the address in the lab's control network.
    :raises DeadlineError: not all ranks arrived within ``seconds``.
    """
    return Gang.join(
        rank=place.rank,
        world=place.world,
        host=host or place.control,
        exchange=_exchange_by_files(Path(folder), place, seconds),
        secret=hashlib.sha256(folder.encode()).digest(),
        attempt="bench",
        timeout=seconds,
        rails=place.addresses,
    )


def _exchange_by_files(folder: Path, place: Place, seconds: float) -> Callable[[str], list[str]]:
    """Return a function that exchanges one text per rank, as the driver's rendezvous does in training."""

    def exchange(text: str) -> list[str]:
        (folder / f"{place.rank}.new").write_text(text)
        (folder / f"{place.rank}.new").rename(folder / f"{place.rank}.json")
        paths = [folder / f"{rank}.json" for rank in range(place.world)]
        deadline = time.monotonic() + seconds
        while not all(path.exists() for path in paths):
            if time.monotonic() > deadline:
                raise DeadlineError(f"not all of {place.world} ranks wrote to {folder} within {seconds:g} s")
            time.sleep(0.01)
        return [path.read_text() for path in paths]

    return exchange


@contextmanager
def gloo_group(file: str, seconds: float) -> Iterator[dist.ProcessGroup]:
    """Join torch's default process group over gloo, and leave it together with all ranks.

    The environment has RANK, WORLD_SIZE, and GLOO_SOCKET_IFNAME, the name of the network interface.

    :param file: the file of the rendezvous.
    :param seconds: deadline of each operation.
    """
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=seconds),
    )
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.barrier()
    dist.destroy_process_group()
