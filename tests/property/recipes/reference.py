"""A recipe trained by plain torch, in one process: what must come out.

In float32 a step is one forward and backward pass of all rows that the ranks have in it. In lower precision a row's gradients
are rounded with those it is computed with, so there the passes are those of the ranks, their gradients accumulated.
"""

from __future__ import annotations

import contextlib
import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from sparkdl_comm.data.partitions import BatchSampler, permutation

from . import components
from .layers import Tracker
from .modules import Net, main_output, seeded
from .recipe import Recipe
from .rows import make
from .stateful import Moving

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Trained:
    """``state``: of the module, tensors and extra state; ``states``: after each epoch. ``losses``: of the epochs, without the
    steps that fp16 skips. ``finite``: everything was, but for these. ``skipped``: how many they were. ``idle``: how often a
    trainable parameter had no gradient in a step. ``empty``: no label of any row counts."""

    state: dict[str, Any] = field(default_factory=dict)
    states: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    finite: bool = True
    skipped: int = 0
    idle: int = 0
    empty: bool = False


class Reference:
    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.ranks = make(recipe)
        self.module: Net = seeded(recipe).train()
        self.loss: Any = components.tensor_loss(recipe)
        more = list(self.loss.parameters()) if isinstance(self.loss, nn.Module) else []
        groups = components.groups(recipe)
        if groups is None:
            params: Any = [p for p in self.module.parameters() if p.requires_grad] + more
        else:
            params = groups(self.module) + ([{"params": more}] if more else [])
        self.parameters = [p for p in self.module.parameters() if p.requires_grad] + more
        self.optimizer = components.optimizer(recipe)(params)
        make_schedule = components.schedule(recipe)
        self.schedule = None if make_schedule is None else make_schedule(self.optimizer)
        self.sampler = BatchSampler.of(recipe.rows, recipe.batch * recipe.accumulation)
        self.scaler = torch.amp.GradScaler("cpu", enabled=recipe.precision == "fp16")
        # The reference's own trackers stand still: each rank's counts what that rank sees.
        self.trackers = {i: part for i, part in enumerate(self.module.parts) if isinstance(part, Tracker)}
        for part in self.trackers.values():
            part.eval()
        self.tracked = [{i: Tracker() for i in self.trackers} for _ in recipe.rows]
        #: Parts whose state each rank changes by itself, and each rank's.
        self.moving = {i: part for i, part in enumerate(self.module.parts) if isinstance(part, Moving)}
        self.moved = [{i: _copied(part.tensors()) for i, part in self.moving.items()} for _ in recipe.rows]
        #: Each rank's state of a loss that changes it.
        self.loss_states = [_copied(self.loss.state_dict()) for _ in recipe.rows] if recipe.loss == "scaled" else []
        #: Ranks that have had fewer forward passes in a step than others, and have not caught up yet.
        self.behind: set[int] = set()
        labels = torch.cat([rows.target for rows in self.ranks])
        #: Whether a row counts by its label: only then torch divides by what the rows of a step count.
        self.by_label = recipe.loss == "class weights" or (
            recipe.loss == "ignored labels" and bool((labels == components.IGNORED).any())
        )
        total = sum(float(rows.weight.sum()) for rows in self.ranks)
        self.weights = [(rows.weight * (sum(recipe.rows) / total)).float() for rows in self.ranks]
        # The mean of nothing is NaN, if it is all there is.
        empty = not any(map(self._counts, [rows.target for rows in self.ranks], self.weights))
        self.result = Trained(finite=not empty, empty=empty)

    def train(self) -> Trained:
        recipe, result = self.recipe, self.result
        for epoch in range(recipe.epochs):
            if recipe.thaw is not None:
                self.module.stem.requires_grad_(epoch % 2 == 1)
            orders = [
                torch.from_numpy(permutation(count, recipe.seed, epoch, rank)) for rank, count in enumerate(recipe.rows)
            ]
            steps = [self._step(number, orders) for number in range(self.sampler.steps)]
            self._catch_up({rank for rank, count in enumerate(recipe.rows) if count})
            losses = [loss for loss in steps if loss is not None]
            result.losses.append(sum(losses) / len(losses) if losses else math.nan)
            self._average()
            result.states.append(copy.deepcopy(self.module.state_dict()))
            if self.schedule is not None and recipe.interval == "epoch":
                plateau = recipe.schedule == "plateau"
                self.schedule.step(result.losses[-1]) if plateau else self.schedule.step()
        result.finite &= all(bool(p.isfinite().all()) for p in self.parameters)
        result.state = self.module.state_dict()
        return result

    def _step(self, number: int, orders: list[torch.Tensor]) -> float | None:
        """The loss; None if fp16 skipped the step."""
        recipe = self.recipe
        self.optimizer.zero_grad(set_to_none=True)
        passes = [min(recipe.accumulation, stop - start) for start, stop in self._slices(number)]
        self._catch_up({rank for rank, count in enumerate(passes) if count})
        self.behind |= {rank for rank, count in enumerate(passes) if count < max(passes)}
        parts = []
        for rank, order in enumerate(orders):
            start, stop = self._slices(number)[rank]
            for index in order[start:stop].tensor_split(recipe.accumulation):
                if len(index):
                    parts.append((rank, index))
                    for tracker in self.tracked[rank].values():
                        tracker.track(self.ranks[rank].x[index])
        count = sum(self._counts(self.ranks[rank].target[index], self.weights[rank][index]) for rank, index in parts)
        value = 0.0
        together = recipe.precision == "fp32" and not self.moving and not self.loss_states
        for passed in [parts] if together else [[part] for part in parts]:
            value += self._pass(passed, count)
        if not math.isfinite(value) and recipe.precision != "fp16":
            self.result.finite = False
        self.result.idle += sum(p.grad is None for p in self.parameters)
        if recipe.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, recipe.clip)
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        skipped = self.scaler.get_scale() < before
        self.result.skipped += skipped
        if self.schedule is not None and recipe.interval == "step":
            self.schedule.step()
        return None if skipped else value

    def _slices(self, number: int) -> list[tuple[int, int]]:
        return [self.sampler.slice(rank, number) for rank in range(self.recipe.world)]

    def _catch_up(self, ranks: set[int]) -> None:
        """Before these ranks go on: if one is behind, all get what those agree on that are not."""
        if not self.behind & ranks:
            return
        current = [rank for rank, count in enumerate(self.recipe.rows) if count and rank not in self.behind]
        self.behind.clear()
        tracked = [{i: tracker.state_dict(keep_vars=True) for i, tracker in rank.items()} for rank in self.tracked]
        for each in (tracked, self.moved):
            for i, first in each[current[0]].items():
                for name, tensor in first.items():
                    if not all(name in each[rank][i] and torch.equal(each[rank][i][name], tensor) for rank in current):
                        continue
                    for rank in range(self.recipe.world):
                        self._give(rank, i, name, tensor.detach().clone())
        for name, tensor in self.loss_states[current[0]].items() if self.loss_states else ():
            if all(torch.equal(self.loss_states[rank][name], tensor) for rank in current):
                for state in self.loss_states:
                    state[name] = tensor.clone()

    def _give(self, rank: int, part: int, name: str, tensor: torch.Tensor) -> None:
        if part in self.tracked[rank]:
            getattr(self.tracked[rank][part], name).copy_(tensor)
        else:
            self.moved[rank][part][name] = tensor

    def _pass(self, parts: list[tuple[int, torch.Tensor]], count: float) -> float:
        """Forward and backward of rows of some ranks, of a step in which all count so much."""
        first = parts[0][0]
        for i, moving in self.moving.items():
            moving.forget()
            moving.take(self.moved[first][i])
        if self.loss_states:
            self.loss.load_state_dict(self.loss_states[first])
        columns = [self.ranks[rank].inputs(self.recipe, index) for rank, index in parts]
        inputs = tuple(torch.cat(column) for column in zip(*columns, strict=True))
        target = torch.cat([self.ranks[rank].target[index] for rank, index in parts])
        weights = torch.cat([self.weights[rank][index] for rank, index in parts])
        dtype = _AUTOCAST.get(self.recipe.precision)
        with contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype):
            output = main_output(self.module(*inputs))
            if output.shape[1] == 1:
                output = output.squeeze(1)
            loss = self._mean(output, target, weights)
        for i, moving in self.moving.items():
            self.moved[first][i] = _copied(moving.tensors())
        if self.loss_states:
            self.loss_states[first] = _copied(self.loss.state_dict())
        share = self._counts(target, weights) / count if count else 0.0
        loss = loss * share
        self.scaler.scale(loss).backward()
        return loss.item()

    def _mean(self, output: torch.Tensor, target: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if self.recipe.weights:
            each = components.row_losses(self.recipe)
            losses: torch.Tensor = each(output, target)
            weighed = (losses.mean(1) if losses.dim() > 1 else losses) * weights
            return weighed.sum() / (self._counts(target, weights) or 1.0)
        if self._counts(target, weights) == 0:  # torch has NaN for a mean of nothing
            weight = components.class_weights() if self.recipe.loss == "class weights" else None
            return F.cross_entropy(output, target, weight, reduction="sum")
        mean: torch.Tensor = self.loss(output, target)
        return mean

    def _counts(self, target: torch.Tensor, weights: torch.Tensor) -> float:
        """What rows weigh in a mean over rows."""
        if not self.by_label:
            return float(len(target))
        counts = (target != components.IGNORED).float()
        if self.recipe.loss == "class weights":
            counts *= components.class_weights()[target.clamp(0)]
        return float((counts * weights).sum() if self.recipe.weights else counts.sum())

    def _average(self) -> None:
        """The end of an epoch: buffers become the same, numbers the mean by rows, whole ones the first rank's with rows."""
        rows = self.recipe.rows
        first = next(rank for rank, count in enumerate(rows) if count)
        for i, part in self.trackers.items():
            mine = [rank[i] for rank in self.tracked]
            mean = sum(tracker.mean.double() * (count / sum(rows)) for tracker, count in zip(mine, rows, strict=True))
            count = mine[first].count.clone()
            for tracker in (*mine, part):
                tracker.mean.copy_(mean)
                tracker.count.copy_(count)
        for i, moving in self.moving.items():
            had = [(moved[i], count) for moved, count in zip(self.moved, rows, strict=True) if count]
            settled = {name: _mean([(tensors[name], count) for tensors, count in had]) for name in had[0][0]}
            moving.forget()
            moving.take(settled)
            for moved in self.moved:
                moved[i] = _copied(settled)
        if self.loss_states:
            states = [(state, count) for state, count in zip(self.loss_states, rows, strict=True) if count]
            mean_state = {name: _mean([(state[name], count) for state, count in states]) for name in states[0][0]}
            self.loss_states = [_copied(mean_state) for _ in rows]


def _copied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _mean(shares: list[tuple[torch.Tensor, int]]) -> torch.Tensor:
    """By rows; the first where their shapes differ."""
    first = shares[0][0]
    if any(tensor.shape != first.shape for tensor, _ in shares):
        return first
    total = sum(count for _, count in shares)
    return torch.stack([tensor.double() * (count / total) for tensor, count in shares]).sum(0).to(first.dtype)


def train(recipe: Recipe) -> Trained:
    return Reference(recipe).train()


def train_nearby(recipe: Recipe) -> Trained:
    """As :func:`train`, from parameters that are a rounding error off."""
    nearby = Reference(recipe)
    random = torch.Generator().manual_seed(recipe.seed)
    with torch.no_grad():
        for parameter in nearby.parameters:
            sign = torch.randint(0, 2, parameter.shape, generator=random) * 2 - 1
            parameter.mul_(1 + sign * torch.finfo(torch.float32).eps)
    return nearby.train()
