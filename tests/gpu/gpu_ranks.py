"""Ranks that train on one GPU, each in a process of its own, without Spark: real gangs, strategies and loops.

NCCL refuses two ranks of one host on one GPU. So each rank tells it that it is a host of its own (NCCL_HOSTID), and it takes
sockets between them, as between real hosts.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparkdl_comm.conf import CommConf
from sparkdl_comm.data.partitions import BatchSampler
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import Optimization, OptimizerMaker, build_module
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.sync_batch_norm import synchronize
from sparkdl_comm.strategies.base import AsynchronousStrategy
from sparkdl_comm.strategies.registry import strategy_class
from sparkdl_comm.train import rng
from sparkdl_comm.train.asynchronous_loop import AsynchronousLoop
from sparkdl_comm.train.callbacks import Progress
from sparkdl_comm.train.checkpoint import Restorer, Saver, describe
from sparkdl_comm.train.spec import Checkpoints, Observation, TrainSpec
from sparkdl_comm.train.training_loop import TrainingLoop
from tests.unit.gang_helpers import file_exchange, join
from tests.unit.ranks import Rows

#: CUDA cannot be used in forks of a process that has used it.
context = multiprocessing.get_context("spawn")

#: Of a gang on a GPU to say that it is lost or late.
TIMEOUT = 60.0
SEED = 5


@dataclass(frozen=True)
class Case:
    """A fit, of all rows in each step. ``settings``: of CommConf, by their names. ``optimization``: of Optimization."""

    settings: Mapping[str, Any]
    make: Callable[[], nn.Module]
    optimization: Mapping[str, Any]
    parts: Sequence[Rows]
    epochs: int = 6
    device: str = "cuda"
    checkpoints: Checkpoints | None = None
    validation: Sequence[Rows] | None = None
    observation: Observation = field(default_factory=Observation)
    augment: Callable[..., Any] | None = None
    loss: nn.Module = field(default_factory=nn.MSELoss)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def spec(self) -> TrainSpec:
        conf = CommConf.from_mapping({}, timeout=f"{TIMEOUT}s", **self.settings)
        return TrainSpec(
            self.make, self.loss, Optimization(**self.optimization), self.rows, self.epochs, SEED, self.device,
            conf.strategy, conf, len(self.parts), False, "0" * 16, b"", ("", 0), checkpoints=self.checkpoints,
            augment=self.augment, observation=self.observation,
        )  # fmt: skip


@dataclass
class Fitted:
    """``values``: of all parameters, flat. ``begun``: the step that it went on from. ``error``: what a rank raised."""

    values: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    history: list[dict[str, Any]] = field(default_factory=list)
    begun: int = 0
    error: str = ""

    @property
    def losses(self) -> list[float]:
        return [row["loss"] for row in self.history]

    @property
    def skipped(self) -> int:
        return sum(row.get("skipped_steps", 0) for row in self.history)


def fit(case: Case, gang: Gang) -> Fitted:
    """What :class:`~sparkdl_comm.job.rank.Rank` does, but for what comes from Spark."""
    spec = case.spec
    torch.manual_seed(spec.seed)
    model = FlatModel(build_module(spec.model).to(case.device))
    strategy = strategy_class(spec.conf)(spec.conf)
    with ExitStack() as stack:
        stack.callback(strategy.close)
        restorer = None
        if spec.checkpoints is not None:
            restorer = Restorer(spec.checkpoints, describe("", spec, model, ["rows"] * gang.world), gang, TIMEOUT)
            stack.callback(restorer.close)
            restorer.find(lambda _: None)
            if restorer.step:
                restorer.load_parameters(model)
        strategy.join(gang, model, OptimizerMaker(model, spec.optimization))
        stack.callback(model.release)
        rng.seed(spec.seed, gang.rank)
        device = next(model.module.parameters()).device
        has_collectives = synchronize(model.module, device, gang, TIMEOUT, stack)
        sampler = BatchSampler.of([part.rows for part in case.parts], case.rows)
        rows = case.parts[gang.rank].cache
        seen = case.validation[gang.rank].cache if case.validation else None
        progress = Progress()
        make_loop = AsynchronousLoop if isinstance(strategy, AsynchronousStrategy) else TrainingLoop
        loop = make_loop(spec, gang, rows, sampler, model, strategy, progress, seen, has_collectives)
        begun = 0
        if spec.checkpoints is not None and restorer is not None:
            begun = restorer.step
            if begun:
                restorer.load_state(loop)
            saver = Saver(spec.checkpoints, restorer.run, gang, TIMEOUT, begun)
            stack.callback(saver.close)
            loop.after_step = saver
        loop.run(lambda _: None)
        if spec.checkpoints is not None:
            saver.wait()
        return Fitted(model.values.detach().cpu().clone(), progress.history, begun)


def one_rank(rank: int, cases: Sequence[Case], directory: Path, pipe: Connection) -> None:
    os.environ["NCCL_HOSTID"] = f"rank {rank}"
    for number, case in enumerate(cases):
        place = directory / str(number)
        place.mkdir(exist_ok=True)
        world = len(case.parts)
        exchange = file_exchange(place, rank, world)
        gang = join(rank, world, exchange, timeout=TIMEOUT, attempt=case.spec.attempt_id)
        try:
            found = fit(case, gang)
        except Exception as exc:  # noqa: BLE001 - looked at by the test
            found = Fitted(error="".join(traceback.format_exception(exc)))
            gang.announce_failure(Failure.of(exc, rank, 0, "training"))
        finally:
            gang.close()
        # As bytes: tensors would be sent through files that go with this process.
        pipe.send((found.values.numpy().tobytes(), found.history, found.begun, found.error))


def fit_all(cases: Sequence[Case], directory: Path, seconds: float = 240.0) -> list[list[Fitted]]:
    """Each case by all of its ranks; all have as many, which are the same processes for one after the other."""
    world = len(cases[0].parts)
    pipes, processes = [], []
    for rank in range(world):
        ours, theirs = context.Pipe()
        process = context.Process(target=one_rank, args=(rank, cases, directory, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        return [[_heard(pipe, seconds) for pipe in pipes] for _ in cases]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _heard(pipe: Connection, seconds: float) -> Fitted:
    if not pipe.poll(seconds):
        return Fitted(error=f"nothing was heard for {seconds} s")
    try:
        values, *others = pipe.recv()
    except EOFError:
        return Fitted(error="the process ended")
    return Fitted(torch.frombuffer(bytearray(values) or bytearray(4), dtype=torch.float32), *others)


def alone(case: Case) -> torch.Tensor:
    """What plain torch finds in one process on the CPU, of the same rows in one batch: the flat parameters."""
    torch.manual_seed(SEED)
    module = case.make()
    optimizer = case.optimization["optimizer"](module.parameters())
    features = torch.cat([part.features for part in case.parts])
    targets = torch.cat([part.targets for part in case.parts])
    for _ in range(case.epochs):
        optimizer.zero_grad()
        ((module(features).squeeze(1) - targets) ** 2).mean().backward()
        if norm := case.optimization.get("max_grad_norm"):
            nn.utils.clip_grad_norm_(module.parameters(), norm)
        optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()
