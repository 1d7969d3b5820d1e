"""Rank programs of benchmarks, without Spark: their start on a cluster of the lab, their job, and their rendezvous.

A rank program has a job, a dataclass of JSON values. The benchmark calls :func:`run_ranks` with both. The program gets the
job by :func:`rank_job`, and prints its results as JSON objects on a line each. ``run_ranks`` returns them. Mostly the
program is the benchmark's own file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lab import Lab, Place
from lab.cluster import Cluster

from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.gang.gang import Gang

J = TypeVar("J")


def run_ranks(cluster: Cluster, program: Path, job: Any, timeout: float) -> list[dict[str, Any]]:
    """Run a program on all ranks of a cluster. Return the results that they print, those of rank 0 first.

    Its arguments are a new folder for the rendezvous, and the job. gloo uses the first NIC.

    :param timeout: seconds for all of them.
    :raises RankFailedError: a rank failed. DeadlineError: one did not end in time.
    """
    nic = cluster.layout.node(0).interface(0) if isinstance(cluster, Lab) else "lo"
    with tempfile.TemporaryDirectory(prefix="sparkdl-ranks-") as folder:
        command = [sys.executable, str(program), folder, json.dumps(asdict(job))]
        ranks = cluster.run(command, timeout=timeout, env={"GLOO_SOCKET_IFNAME": nic})
    return [json.loads(line) for rank in ranks for line in rank.stdout.splitlines() if line.startswith("{")]


def rank_job(kind: type[J]) -> tuple[str, J, Place]:
    """Return the folder of the rendezvous, the job and this rank's place, in a rank program. torch gets one thread."""
    torch.set_num_threads(1)
    return sys.argv[1], kind(**json.loads(sys.argv[2])), Place.here()


@contextmanager
def join_gang(folder: str, place: Place, seconds: float, host: str | None = None) -> Iterator[Gang]:
    """Join the gang of all ranks with the same folder, and leave it together with all of them.

    :param host: address for control messages. None: the address in the lab's control network.
    :raises DeadlineError: not all ranks arrived, or left, within ``seconds``.
    """
    with Gang.join(
        rank=place.rank,
        world=place.world,
        host=host or place.control,
        exchange=_exchange_by_files(Path(folder), place, seconds),
        secret=hashlib.sha256(folder.encode()).digest(),
        attempt="bench",
        timeout=seconds,
        rails=place.addresses,
    ) as gang:
        yield gang
        gang.wait_until_alone(seconds)


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
def gloo_group(folder: str, seconds: float) -> Iterator[dist.ProcessGroup]:
    """Join torch's default process group of all ranks with the same folder over gloo, and leave it together with them.

    :param seconds: deadline of each operation.
    """
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=seconds),
    )
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.barrier()
    dist.destroy_process_group()
