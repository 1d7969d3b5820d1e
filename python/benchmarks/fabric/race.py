"""Systems that race, and the job of a race's ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import torch
from benchmarks.fabric.conditions import Computing
from benchmarks.fabric.digits import Digits, Task
from benchmarks.fabric.topics import Topics

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.units import format_rate

#: Rate of a host's link, bit/s. It stands for the paper's 10 Gbit/s.
RATE = 100_000_000
_SYSTEM = re.compile(r"fabric(?:-(bsp|\d+))?|ring|ddp|async")


@dataclass(frozen=True)
class System:
    """System that trains. ``kind``: fabric, ring, ddp or async. ``sync``: synchrony of the fabric."""

    name: str
    kind: str
    sync: str = ""

    @classmethod
    def parse(cls, name: str) -> System:
        """Return the system of a name. ``fabric`` has a bound of 30 on delays.

        :raises ConfError: the name is unknown, or its bound is 0.
        """
        found = _SYSTEM.fullmatch(name)
        if not found:
            raise ConfError(f"{name}: there are fabric, fabric-TAU, fabric-bsp, ring, ddp and async")
        kind = name.partition("-")[0]
        if kind != "fabric":
            return cls(name, kind)
        sync = "bsp" if found[1] == "bsp" else f"async:{found[1] or 30}"
        FabricParams(sync)
        return cls(name, kind, sync)

    @property
    def has_server(self) -> bool:
        """True if the last rank is a server, on its own host."""
        return self.kind in ("fabric", "async")

    @property
    def delay_bound(self) -> int | None:
        return FabricParams(self.sync).delay_bound if self.sync else None


@dataclass(frozen=True)
class Race:
    """Job of all ranks of a race.

    - ``updates``: updates of the model until the race ends.
    - ``computing``: seconds of an update without slowdown. ``stragglers``: a compute setting of conditions.py.
    - ``timeout``: seconds that a rank waits for others.
    - ``data``: file of the digits, or of the documents if ``topics`` is not 0. ``topics``: number of topics.
    - ``begun``: file that exists once the race has begun.
    """

    system: str
    workers: int
    updates: int
    computing: float
    stragglers: str
    seed: int
    timeout: float
    data: str
    begun: str
    topics: int = 0

    def task(self) -> Task:
        with np.load(self.data, allow_pickle=False) as found:
            if not self.topics:
                return Digits(torch.from_numpy(found["pixels"]), torch.from_numpy(found["labels"]), self.seed)
            return Topics(found["training"], found["held_out"], int(found["words"]), self.topics, self.seed)

    def step(self, worker: int) -> Computing:
        return Computing(self.computing, self.stragglers, self.seed, worker)

    def conf(self, topology: str) -> CommConf:
        return CommConf.from_mapping(
            {}, topology=topology, timeout=f"{self.timeout}s", fabric_link_rate=format_rate(RATE)
        )
