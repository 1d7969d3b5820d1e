"""What steps take, and what of it is computing, by a clock that the test sets."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import nn

from sparkdl_comm.autotune.timing import StepTimer
from sparkdl_comm.space.flat import FlatModel


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float) -> None:
        self.now += seconds


def bound(module: nn.Module) -> FlatModel:
    model = FlatModel(module)
    model.bind(torch.empty(model.count), torch.zeros(model.count))
    return model


class Slow(torch.autograd.Function):
    """Passes gradients on, and lets time go by."""

    @staticmethod
    def forward(ctx, x, clock, seconds):
        ctx.clock, ctx.seconds = clock, seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.after(ctx.seconds)
        return gradient, None, None


def test_a_wait_for_parameters_is_no_computing() -> None:
    clock, module, waited = Clock(), nn.Linear(2, 1), Clock()
    timer = StepTimer(bound(module), clock, waited)
    for _ in range(2):
        timer.begin()
        clock.after(2.0)
        waited.after(1.5)
        output = module(torch.ones(1, 2))
        with timer.backward():
            output.sum().backward()
        timer.end()
    assert timer.average_timings().forward == 0.5
    assert timer.seconds == [2.0, 2.0]


def test_the_mean_of_the_steps_that_are_measured() -> None:
    clock, module = Clock(), nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    timer = StepTimer(bound(module), clock)
    timer.restart(1)
    for number, (forward, middle) in enumerate([(9.0, 9.0), (1.0, 2.0), (3.0, 4.0)]):
        timer.begin()
        clock.after(forward)
        output = module[1](Slow.apply(module[0](torch.ones(1, 2)), clock, middle))
        with timer.backward():
            output.sum().backward()
            clock.after(0.5)
        with timer.update():
            clock.after(0.25)
        timer.end()
        assert len(timer.seconds) == max(0, number)
    assert timer.seconds == [3.75, 7.75]
    found = timer.average_timings()
    assert (found.forward, found.backward, found.update) == (2.0, 3.5, 0.25)
    assert found.arrivals == pytest.approx((3.0, 3.0, 0.0, 0.0)), (
        "weight and bias of the first layer come after the wait"
    )


def test_a_rank_without_rows_has_a_step_all_the_same() -> None:
    clock = Clock()
    timer = StepTimer(bound(nn.Linear(2, 1)), clock)
    timer.begin()
    clock.after(1.0)
    timer.end()
    assert timer.seconds == [1.0]
    assert timer.average_timings().backward == 0.0


def test_the_times_of_a_pass_that_raises_are_kept() -> None:
    clock = Clock()
    timer = StepTimer(bound(nn.Linear(2, 1)), clock)
    timer.begin()
    for context, seconds in ((timer.backward(), 3.0), (timer.update(), 2.0)):
        with suppress(ValueError), context:
            clock.after(seconds)
            raise ValueError
    timer.end()
    found = timer.average_timings()
    assert (found.backward, found.update) == (3.0, 2.0)
