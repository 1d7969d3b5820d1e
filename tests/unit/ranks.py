"""Ranks that train in threads of this process: real gangs and loops; a strategy whose bytes travel by Gang.all_gather."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.data.fields import RowFormat
from sparkdl_comm.data.partitions import BatchSampler
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import Optimization, OptimizerMaker
from sparkdl_comm.optim.parallel import GangRanks, SingleRank
from sparkdl_comm.optim.shard import Shard
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.untrained_state import broadcast_initial_state
from sparkdl_comm.strategies.base import AsynchronousStrategy, Strategy
from sparkdl_comm.train.asynchronous_loop import AsynchronousLoop
from sparkdl_comm.train.callbacks import Progress
from sparkdl_comm.train.spec import Observation, TrainSpec
from sparkdl_comm.train.training_loop import TrainingLoop

from .gang_helpers import SECONDS, gang_of


@dataclass
class Rows:
    """A rank's rows, with one column of features and one of targets."""

    features: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return len(self.features)

    @property
    def cache(self) -> RowCache:
        return RowCache((self.features,), (self.targets,), self.weights)

    def cut(self, *counts: int) -> list[Rows]:
        """Parts of so many rows, one for each rank."""
        weights = [None] * len(counts) if self.weights is None else self.weights.split(counts)
        return [
            Rows(*part) for part in zip(self.features.split(counts), self.targets.split(counts), weights, strict=True)
        ]


def _cache(rows: Rows | RowCache) -> RowCache:
    return rows.cache if isinstance(rows, Rows) else rows


class Gathered(Strategy):
    """Sums gradients in the order of the ranks; every rank updates all, or, if sharded, one stretch."""

    can_take_changes = True

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        self._gang, self._model = gang, model
        model.bind(torch.empty(model.count), torch.zeros(model.count))
        self._cuts = [0, *(model.count * (rank + 1) // gang.world for rank in range(gang.world))]
        if self.is_sharded:
            self._mine = slice(self._cuts[gang.rank], self._cuts[gang.rank + 1])
        else:
            self._mine = slice(0, model.count)
        ranks = GangRanks(gang, SECONDS) if self.is_sharded else SingleRank()
        self._shard = Shard(model, self.owned(), model.gradients, make_optimizer, ranks)
        self.optimizer = self._shard.optimizer
        self._stale = False

    def _everybody(self, vector: torch.Tensor) -> list[torch.Tensor]:
        given = self._gang.all_gather(vector.numpy().tobytes(), SECONDS)
        return [torch.from_numpy(np.frombuffer(bytearray(each), np.float32)) for each in given]

    def before_forward(self) -> None:
        if self._stale:
            everybody = self._everybody(self._model.values)
            for rank, theirs in enumerate(everybody):
                stretch = slice(self._cuts[rank], self._cuts[rank + 1])
                self._model.values[stretch] = theirs[stretch]
            self._stale = False

    def after_backward(self) -> None:
        own, *others = self._everybody(self._model.gradients)
        total = sum(others, own)
        # As in strategy ps, a rank has the sum for its own shard only.
        self._model.gradients[self._mine] = total[self._mine]

    def gradients(self) -> list[torch.Tensor]:
        return [self._model.gradients[self._mine]]

    def update(self, apply: bool = True) -> None:
        if apply:
            self._shard.step()
        self._stale = self.is_sharded

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return [(self._mine.start, self._model.values[self._mine])]

    def finish(self) -> None:
        self.before_forward()

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


class Sharded(Gathered):
    is_sharded = True
    can_take_changes = False


def train(
    make: Callable[[], torch.nn.Module],
    parts: list[Rows] | list[RowCache],
    *,
    validation: list[Rows] | list[RowCache] | None = None,
    rows: RowFormat | None = None,
    strategy: type[Strategy] = Gathered,
    conf: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
    loss: Any = None,
    batch: int = 10**6,
    epochs: int = 3,
    observation: Observation | None = None,
    augment: Any = None,
    arrive: Callable[[TrainSpec, Gang, FlatModel], None] = lambda spec, gang, model: None,
    prepare: Callable[[TrainingLoop], None] = lambda loop: None,
    finish: Callable[[TrainingLoop], None] = lambda loop: None,
    **optimization: Any,
) -> list[TrainingLoop]:
    """One rank per part, to the end; raises what a rank raised.

    `conf`: settings by their names in CommConf. `settings`: more of them, by their keys without the prefix. `arrive` is called
    before each rank's strategy joins, `prepare` before its `run`, `finish` after it.
    """
    world = len(parts)
    optimization.setdefault("optimizer", lambda params: torch.optim.SGD(params, lr=0.1))
    spec = TrainSpec(
        make, loss or torch.nn.MSELoss(), Optimization(**optimization), batch, epochs, 5, "cpu", "none",
        CommConf.from_mapping(
            {PREFIX + key: value for key, value in (settings or {}).items()}, timeout="20s", **(conf or {})
        ), world, False, "0" * 16, b"", ("", 0),
        rows=rows or RowFormat(), observation=observation or Observation(), augment=augment,
    )  # fmt: skip
    models = []
    for _ in parts:
        torch.manual_seed(spec.seed)
        models.append(FlatModel(make()))
    sampler = BatchSampler.of([part.rows for part in parts], batch * spec.optimization.accumulation_steps)
    loops: list[Any] = [None] * world
    errors: list[BaseException] = []

    def one(gang: Gang) -> None:
        joined = strategy(spec.conf)
        try:
            broadcast_initial_state(models[gang.rank], gang, SECONDS)
            arrive(spec, gang, models[gang.rank])
            joined.join(gang, models[gang.rank], OptimizerMaker(models[gang.rank], spec.optimization))
            own, *seen = (_cache(each[gang.rank]) for each in (parts, validation) if each)
            make_loop = AsynchronousLoop if isinstance(joined, AsynchronousStrategy) else TrainingLoop
            loop = make_loop(spec, gang, own, sampler, models[gang.rank], joined, Progress(), *seen)
            loops[gang.rank] = loop
            prepare(loop)
            loop.run(lambda progress: None)
            finish(loop)
        except BaseException as exc:  # noqa: BLE001 - raised below, in the test's thread
            errors.append(exc)
            gang.announce_failure(Failure.of(exc, gang.rank, 0, "training"))
            gang.close()
        finally:
            joined.close()

    with gang_of(world, attempt=spec.attempt_id, rails=spec.conf.rails) as gangs:
        threads = [threading.Thread(target=one, args=(gang,), daemon=True) for gang in gangs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * SECONDS)
        hanging = sum(thread.is_alive() for thread in threads)
    assert not hanging, f"{hanging} ranks do not end"
    if errors:
        raise errors[0]
    return loops
