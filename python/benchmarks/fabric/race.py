"""What all ranks of a race are told: what to learn, by which system, and under which conditions."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

import numpy as np
import torch
from benchmarks.fabric.conditions import Computing
from benchmarks.fabric.digits import Digits, Task
from benchmarks.fabric.topics import Topics

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.fabric.params import Synchrony
from sparkdl_comm.units import format_rate

KNOWN = "fabric, fabric-TAU, fabric-bsp, ring, ddp and async"
_SYSTEM = re.compile(r"fabric(?:-(bsp|\d+))?|ring|ddp|async")


@dataclass(frozen=True)
class System:
    """``kind``: fabric, ring, ddp or async. ``sync``: of the fabric.

    :raises ConfError: (of ``parse``) there is none of this name.
    """

    name: str
    kind: str
    sync: str = ""

    @classmethod
    def parse(cls, name: str, bound: int = 30) -> System:
        """``bound``: on delays, of one whose name tells none."""
        found = _SYSTEM.fullmatch(name)
        if not found:
            raise ConfError(f"{name}: there are {KNOWN}")
        kind = name.partition("-")[0]
        if kind != "fabric":
            return cls(name, kind)
        sync = "bsp" if found[1] == "bsp" else f"async:{found[1] or bound}"
        Synchrony.parse(sync, "fabric-TAU")
        return cls(name, kind, sync)

    @property
    def has_server(self) -> bool:
        """On a host of its own, as the last rank."""
        return self.kind in ("fabric", "async")

    @property
    def delay_bound(self) -> int | None:
        bounded = self.sync.startswith("async:")
        return int(self.sync.partition(":")[2]) if bounded else None


@dataclass(frozen=True)
class Race:
    """``data``: a file of what is learned; ``topics``: how many are looked for, in documents; 0: digits are learned.
    ``updates``: of the model, after which it ends. ``computing``: seconds of an update, without stragglers; ``stragglers``: a
    key of ``SETTINGS`` in conditions.py. ``rate``: bit/s of a link. ``interval``: seconds between decisions of the fabric.
    ``timeout``: seconds that a rank waits for others."""

    system: System
    workers: int
    updates: int
    computing: float
    stragglers: str
    rate: int
    interval: float
    seed: int
    timeout: float
    data: str
    topics: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Race:
        told = json.loads(text)
        return cls(**{**told, "system": System(**told["system"])})

    def task(self) -> Task:
        with np.load(self.data, allow_pickle=False) as found:
            if not self.topics:
                return Digits(torch.from_numpy(found["pixels"]), torch.from_numpy(found["labels"]), self.seed)
            return Topics(found["training"], found["held_out"], int(found["words"]), self.topics, self.seed)

    def step(self, worker: int) -> Computing:
        return Computing(self.computing, self.stragglers, self.seed, worker)

    def conf(self, topology: str) -> CommConf:
        return CommConf.from_mapping(
            {},
            topology=topology,
            timeout=f"{self.timeout}s",
            fabric_link_rate=format_rate(self.rate),
            fabric_batch_interval=f"{self.interval}s",
        )
