"""What the fault fuzzer draws: a fit, a fault and its moment, as plain data that a seed gives again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

#: By name: Spark's master, and the slots of each of the three executors.
CLUSTERS = {
    "local-cluster": ("local-cluster[3,1,1024]", 1),
    "local-cluster with spare slots": ("local-cluster[3,2,1024]", 2),
    "standalone": ("", 1),
}
#: A block that is chosen by what was measured may be another one in another gang, and so may be the order of additions.
_BLOCK = {"spark.sparkdl.comm.collective.block": "16KiB"}
#: By name: strategy, and the conf that makes it this variant.
VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "ps": ("ps", {}),
    "ps layerwise": (
        "ps",
        {"spark.sparkdl.comm.ps.batching": "layerwise", "spark.sparkdl.comm.ps.sharedMemory": "false"},
    ),
    "ps ibatch": (
        "ps",
        {"spark.sparkdl.comm.ps.batching": "ibatch", "spark.sparkdl.comm.ps.profileIterations": "3"},
    ),
    "ring": ("ring", {}),
    "lp": ("lp", {}),
    "ring decoupled": ("ring", {"spark.sparkdl.comm.collective.loop": "decoupled"}),
    "lp at the root": ("lp", {"spark.sparkdl.comm.collective.loop": "root-overlap"}),
    "bml": ("bml", _BLOCK),
    "auto": ("auto", {}),
    "p2p-ps": ("p2p-ps", _BLOCK),
    "gloo": ("gloo", {}),
}
#: Likewise, without common steps: there is not one right result.
ASYNCHRONOUS: dict[str, tuple[str, dict[str, str]]] = {
    name: ("fabric", {"spark.sparkdl.comm.fabric.batchInterval": "20ms", **conf})
    for name, conf in {
        "fabric": {},
        "fabric bsp": {"spark.sparkdl.comm.fabric.sync": "bsp"},
        "fabric with a replica": {
            "spark.sparkdl.comm.fabric.replica": "true",
            "spark.sparkdl.comm.fabric.divergence": "1.0",
        },
    }.items()
}
EPOCHS, STEPS = 4, 32
RANKS = 3
#: Of the model, at least, in all epochs without common steps: each row is used once.
UPDATES = RANKS * STEPS

#: Struck by the rank itself, in a phase of its step; with how often they are drawn.
INSIDE = {"kill worker": 2, "kill executor": 2, "cut link": 4, "flip byte": 3, "close store": 2, "full disk": 2}
#: Of strategy fabric, whose aggregators, server and replica are processes beside ranks.
BESIDE = {"kill aggregator": 3, "kill server": 3}
#: Struck by the test's process, some time after the fit or its first step began.
OUTSIDE = {
    "kill worker": 1,
    "kill executor": 2,
    "kill driver": 1,
    "stop worker": 2,
    "stop executor": 2,
    "slow worker": 1,
    "slow executor": 1,
    "cut executors": 2,
    "interrupt": 2,
    "interrupt all": 1,
}


@dataclass(frozen=True)
class Case:
    """`files`: rows come from 16 files. `interval`: steps between checkpoints, 0 for none. `phase` and `step`: where the rank
    strikes itself; without a phase, `milliseconds` after the `since`: "fit" or "first step". `pick`: see `wire`."""

    seed: int
    cluster: str
    variant: str
    fault: str
    rank: int
    files: bool = False
    interval: int = 0
    restarts: int = 0
    phase: str = ""
    step: int = 0
    since: str = ""
    milliseconds: int = 0
    pick: float = 0.0

    def __str__(self) -> str:
        when = f"in {self.phase} {self.step}" if self.phase else f"{self.milliseconds} ms after the {self.since}"
        fit = [self.variant, self.cluster, *(["files"] if self.files else [])]
        fit += [f"checkpoints {self.interval}"] if self.interval else []
        fit += [f"restarts {self.restarts}"] if self.restarts else []
        return f"{self.seed}: {self.fault} of rank {self.rank} {when}; {', '.join(fit)}"

    @property
    def strategy(self) -> str:
        return (VARIANTS | ASYNCHRONOUS)[self.variant][0]

    @property
    def is_asynchronous(self) -> bool:
        return self.variant in ASYNCHRONOUS

    @property
    def timeout(self) -> int:
        """Of the fit, seconds: less than others stay stopped, and more than it takes workers to get ready."""
        return 12 if self.fault.startswith("stop") else 45

    @property
    def conf(self) -> dict[str, str]:
        return {
            **(VARIANTS | ASYNCHRONOUS)[self.variant][1],
            "spark.sparkdl.comm.timeout": f"{self.timeout}s",
            "spark.sparkdl.comm.maxRestarts": str(self.restarts),
        }

    @property
    def must_succeed(self) -> bool:
        """Nothing is lost that a fit does not get over."""
        if self.fault == "kill server" and self.rank < 2:  # beside the others only aggregators are
            return self.variant == "fabric with a replica" or self.rank > 0
        return (
            self.fault.startswith("slow")
            or self.fault in BESIDE
            or (self.restarts > 0 and self.fault in ("kill worker", "kill executor"))
        )

    @property
    def deadline(self) -> float:
        """Seconds from the fault to the end of the fit."""
        return 30.0 + self.timeout * self.fault.startswith("stop") + 45.0 * self.restarts


def draw(seed: int, cluster: str, variants: Mapping[str, tuple[str, dict[str, str]]] = VARIANTS) -> Case:
    rng = random.Random(seed)
    variant = rng.choice(list(variants))
    inside = rng.random() < 0.5
    table = INSIDE if inside else OUTSIDE
    if inside and variants[variant][0] == "fabric":
        table = INSIDE | BESIDE
    if variants[variant][0] != "ps":
        table = {fault: weight for fault, weight in table.items() if fault != "cut executors"}
    fault = rng.choices(list(table), list(table.values()))[0]
    rank = 0 if fault == "close store" else rng.randrange(RANKS)
    interval = rng.choice((4, 16)) if fault == "full disk" or rng.random() < 0.5 else 0
    restarts = rng.choice((0, 1)) if fault.split()[0] in ("kill", "cut", "close") and fault != "kill driver" else 0
    fit = Case(seed, cluster, variant, fault, rank, rng.random() < 0.5, interval, restarts, pick=rng.random())
    moment = _inside(rng, fit) if inside else _outside(rng, fit)
    return Case(**{**vars(fit), **moment})


def _inside(rng: random.Random, fit: Case) -> dict[str, object]:
    phases = ["set-up", "join", "forward", "backward", "update"]
    if fit.strategy in ("ps", "gloo"):
        phases += ["push", "finish"]
    if fit.strategy == "ps":
        phases += ["attach", "pull"]
    if fit.rank == 0:
        phases += ["send"]
    if fit.interval and not fit.is_asynchronous:  # which are written after some update or other
        phases += ["checkpoint"] * 3
    if not fit.fault.startswith("kill") or fit.fault in BESIDE:  # these need what is made while ranks join
        phases = [phase for phase in phases if phase not in ("set-up", "join", "attach")]
    phase = rng.choice(phases)
    if phase == "checkpoint":
        return {"phase": phase, "step": fit.interval * rng.randint(1, STEPS // fit.interval)}
    once = ("set-up", "join", "attach", "finish", "send")
    return {"phase": phase, "step": 0 if phase in once else rng.randrange(1, STEPS)}


def _outside(rng: random.Random, fit: Case) -> dict[str, object]:
    if fit.fault.startswith("interrupt") and rng.random() < 0.4:
        return {"since": "fit", "milliseconds": rng.randrange(0, 3000)}
    return {"since": "first step", "milliseconds": rng.randrange(0, 1200)}
