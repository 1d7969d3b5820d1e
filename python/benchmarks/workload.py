"""What every peer trains, what must come out of it, and how one is told what to do and says what it found.

A model is a number, of hidden units: a perceptron of 784 inputs and one output, which really computes, and whose few rows
per step leave nearly all of an iteration to the network. Or a profile, or its name: an emulated network, whose layers
wait (see lab.emulated). The weights after the last step are compared with those that one process finds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lab.emulated import EmulatedNetwork
from torch import nn

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import NamedStrategy
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.strategies.registry import strategy_class
from sparkdl_comm.topology import Topology

Model = int | str | Profile

INPUTS = 784
LEARNING_RATE = 0.05
#: Of each rank in a step of the benchmark `jobs`. Emulated layers wait the same, however many.
ROWS = 4
#: How far weights may be from the right ones, as a share of the furthest way that one has gone from the start.
TOLERANCE = 1e-3
_SEED = 11


@dataclass(frozen=True)
class Job:
    """`models`: to train, one after the other; `rows`: of a rank in a step; `steps`: iterations of a run.

    `warmup` runs come before the `repeats` that are timed. `timeout`: seconds for all. Results go to the file `output`.
    """

    models: Sequence[Model]
    rows: int
    steps: int
    warmup: int
    repeats: int
    ranks: int
    timeout: float
    output: str

    @property
    def iterations(self) -> int:
        """Of all runs of a model together."""
        return self.steps * (self.warmup + self.repeats)

    @property
    def total_bytes(self) -> int:
        """Of the parameters of all models."""
        return sum(map(nbytes, self.models))

    @classmethod
    def here(cls) -> Job:
        """From this program's only argument."""
        return cls(**json.loads(sys.argv[1]))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def write(self, results: Sequence[dict[str, Any]]) -> None:
        """Write the output: one JSON line each, with `bytes`, `samples` (seconds per iteration), `verified`."""
        Path(self.output).write_text("".join(json.dumps({"case": "training", **result}) + "\n" for result in results))


@dataclass(frozen=True)
class RankJob:
    """Job of the benchmark `jobs`. ``loop``, ``batching``, ``compression``, ``bucket``: as the settings of these names;
    ``bucket`` None: the default.
    ``profile``: a file. ``scale``: of its waits. ``steps``: iterations of a run; ``warmup`` runs precede ``repeats``."""

    strategy: str
    loop: str
    batching: str
    compression: str
    bucket: int | None
    profile: str
    scale: float
    steps: int
    warmup: int
    repeats: int
    timeout: float


def nbytes(model: Model) -> int:
    """Of the float32 parameters."""
    if not isinstance(model, int):
        return 4 * (Profile.load(model) if isinstance(model, str) else model).parameters
    return 4 * (INPUTS * model + model + model + 1)


def hidden_of(wanted: int) -> int:
    """Units, so that the parameters have about as many bytes as wanted."""
    return max(1, round((wanted / 4 - 1) / (INPUTS + 2)))


def network(model: Model, scale: float = 1.0) -> nn.Module:
    """The model; its weights are the same each time, everywhere. `scale`: of the waits of an emulated network."""
    return perceptron(model) if isinstance(model, int) else EmulatedNetwork(model, outputs=1, scale=scale)


def perceptron(hidden: int) -> nn.Sequential:
    generator = torch.Generator().manual_seed(_SEED)
    model = nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    for parameter in model.parameters():
        parameter.data.uniform_(-0.04, 0.04, generator=generator)
    return model


def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The batch of all ranks together, float32 [count, 784], and its targets [count]; the same in every step."""
    random = np.random.default_rng(_SEED)
    return random.random((count, INPUTS), np.float32), random.random(count, np.float32)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean squared error of outputs [rows, 1], or [rows], and targets [rows]."""
    return nn.functional.mse_loss(output.reshape(-1), target)


def right(trained: nn.Module, model: Model, count: int, iterations: int) -> bool:
    """Whether a model is what so many iterations of SGD make of it, in one process."""
    start, alone = network(model, scale=0), network(model, scale=0)
    optimizer = torch.optim.SGD(alone.parameters(), lr=LEARNING_RATE)
    inputs, targets = map(torch.from_numpy, rows(count))
    for _ in range(iterations):
        optimizer.zero_grad()
        loss(alone(inputs), targets).backward()
        optimizer.step()
    weights = [torch.cat([p.detach().flatten() for p in net.parameters()]) for net in (start, alone, trained)]
    return bool((weights[2] - weights[1]).abs().max() <= TOLERANCE * (weights[1] - weights[0]).abs().max())


def check(settings: Mapping[str, str], world: int) -> None:
    """:raises ConfError: settings of spark.sparkdl.comm that no fit of so many ranks can have."""
    conf = CommConf.from_mapping({PREFIX + name: value for name, value in settings.items()})
    strategy_class(conf).check(conf, world)


def fits(way: str, topology: Topology) -> bool:
    """Whether it can run there; those that are no algorithm of collectives can everywhere."""
    strategy = NamedStrategy.parse(way).strategy
    return strategy not in ALGORITHMS or not ALGORITHMS[strategy].why_ineligible(topology)
