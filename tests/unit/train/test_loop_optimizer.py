"""Parameter groups and learning rate schedules of the training loop, on ranks of unequal size: the same as in one process."""

import functools
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.train.spec import Observation, Stopping
from tests.unit.loop_helpers import BOTH, PARTS, ROWS, Net, assert_same, momentum, reference, table
from tests.unit.ranks import train


def groups(module: nn.Module) -> list[dict[str, Any]]:
    biases = [parameter for name, parameter in module.named_parameters() if name.endswith("bias")]
    rest = [parameter for name, parameter in module.named_parameters() if not name.endswith("bias")]
    return [{"params": rest, "weight_decay": 0.1}, {"params": biases, "lr": 0.5, "momentum": 0.0}]


@BOTH
@pytest.mark.parametrize("interval", ["epoch", "step"])
def test_groups_and_scheduler(strategy: Any, interval: str) -> None:
    def rate(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda n: 0.5**n, lambda n: 1 / (1 + n)])

    loops = train(
        Net, table().cut(*PARTS), strategy=strategy, epochs=4, optimizer=momentum, param_groups=groups,
        lr_scheduler=rate, scheduler_interval=interval,
    )  # fmt: skip
    assert_same(loops, reference(Net, table(), 4, groups=groups, rate=rate))
    at_step_ends = [0.05, 0.025, 0.0125, 0.00625]
    used = [0.1, *at_step_ends[:3]]
    assert [row["lr"] for row in loops[1].progress.history] == (at_step_ends if interval == "step" else used)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda module: module.parameters(), "must return a list of dicts"),
        (lambda module: groups(module)[:1], "leaves out trainable parameters: 0.bias, 2.bias"),
        (lambda module: groups(module) + groups(module)[:1], "more than one group: 0.weight, 2.weight"),
        (lambda module: [{"params": [nn.Parameter(torch.ones(1))]}], "1 tensors are no parameters"),
    ],
)
def test_groups_refused(given: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        train(Net, table().cut(ROWS), param_groups=given)


def one_cycle(optimizer: Any, total_steps: int) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps)


def linear_to_zero(optimizer: Any, num_training_steps: int) -> Any:
    """As Hugging Face's schedules are made."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / num_training_steps)


def in_a_row(optimizer: Any) -> Any:
    rates = torch.optim.lr_scheduler
    first = rates.ConstantLR(optimizer, 1.0, 1)
    return rates.SequentialLR(optimizer, [first, rates.CyclicLR(optimizer, 0.01, 0.2, 6)], [1])


@pytest.mark.parametrize(
    "factory",
    [
        functools.partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.2),
        functools.partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.2, epochs=3, steps_per_epoch=4),
        one_cycle,
        linear_to_zero,
        functools.partial(torch.optim.lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.2, step_size_up=6),
        in_a_row,
    ],
)
def test_schedules_made_for_steps(factory: Any) -> None:
    """12 steps in 3 epochs: up and down again, as in one process."""
    rates: list[float] = []

    def prepare(loop: Any) -> None:
        loop.after_step = lambda loop: rates.append(loop.strategy.optimizer.param_groups[0]["lr"])

    train(Net, table().cut(ROWS), epochs=3, batch=6, optimizer=momentum, lr_scheduler=factory, prepare=prepare)
    optimizer = momentum(Net().parameters())
    known = {"num_training_steps": 12} if factory is linear_to_zero else {}
    known |= (
        {"total_steps": 12} if factory is one_cycle or getattr(factory, "keywords", None) == {"max_lr": 0.2} else {}
    )
    scheduler = factory(optimizer, **known)
    expected = []
    for _ in range(12):
        optimizer.step()
        scheduler.step()
        expected.append(optimizer.param_groups[0]["lr"])
    assert rates == expected
    assert len(set(rates)) > 5


def test_schedules_by_epochs_if_so_set() -> None:
    loops = train(
        Net,
        table().cut(ROWS),
        epochs=3,
        batch=6,
        optimizer=momentum,
        lr_scheduler=one_cycle,
        scheduler_interval="epoch",
    )
    rates = [row["lr"] for row in loops[0].progress.history]
    scheduler = one_cycle(momentum(Net().parameters()), 3)
    assert rates[0] == scheduler.get_last_lr()[0]
    assert len(set(rates)) == 3


def test_a_cycle_that_would_end_too_early() -> None:
    too_short = functools.partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=11)
    seen = []
    with pytest.raises(ConfError, match="OneCycleLR has total_steps=11, and training takes 12. Leave out total_steps"):
        train(Net, table().cut(ROWS), epochs=3, batch=6, lr_scheduler=too_short, prepare=seen.append)
    assert not seen, "before the first step"


def test_plateau_sees_the_loss_of_all_ranks() -> None:
    seen = []

    class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics: Any, epoch: Any = None) -> None:
            seen.append(metrics)

    with pytest.raises(
        ConfError,
        match="earlyStoppingMonitor='val_loss', which needs validation rows; .*or earlyStoppingMonitor='loss'",
    ):
        train(Net, table().cut(*PARTS), epochs=2, lr_scheduler=lambda optimizer: Plateau(optimizer))
    loops = train(
        Net,
        table().cut(*PARTS),
        epochs=2,
        lr_scheduler=Plateau,
        observation=Observation(stopping=Stopping(monitor="loss")),
    )
    whole = [sum(loop.progress.history[epoch]["loss"] for loop in loops) for epoch in range(2)]
    assert sorted(seen) == pytest.approx(sorted(whole * 3))
    assert len(set(seen)) == 2


def test_an_optimizer_that_is_none() -> None:
    with pytest.raises(
        ModelError, match="optimizer: the factory returned list; it must return a torch.optim.Optimizer"
    ):
        train(Net, table().cut(ROWS), optimizer=list)
