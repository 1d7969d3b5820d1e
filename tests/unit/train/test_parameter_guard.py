"""Callbacks that change trained parameters: as in plain torch, or refused at the first step that does."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl_comm import Callback
from sparkdl_comm.errors import CallbackError
from sparkdl_comm.train.spec import Observation
from tests.slow import crossed
from tests.unit.ranks import Gathered, train
from tests.unit.strategies.test_used_parameters import ALL, PARTS, assert_same, of, table

STEPS, LIMIT = 7, 0.2


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def by_data(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.data.clamp_(-LIMIT, LIMIT)


def in_place(module: nn.Module) -> None:
    with torch.no_grad():
        torch._foreach_clamp_max_(list(module.parameters()), LIMIT)
        for parameter in module.parameters():
            torch.clamp(parameter, min=-LIMIT, out=parameter)


def by_new_data(module: nn.Module) -> None:
    flat = nn.utils.parameters_to_vector(module.parameters()).detach()
    nn.utils.vector_to_parameters(flat.clamp(-LIMIT, LIMIT), module.parameters())


def by_numpy(module: nn.Module) -> None:
    for parameter in module.parameters():
        for array in (parameter.detach().numpy(), np.asarray(parameter.data)):
            array[...] = array.clip(-LIMIT, LIMIT)


class Clip(Callback):
    def __init__(self, clip: Any, hook: str) -> None:
        self.clip = clip
        setattr(self, hook, lambda state: clip(state.module))


class Bystander(Callback):
    def on_step_end(self, state: Any) -> None:
        state.module.state_dict()
        for parameter in state.module.parameters():
            parameter.detach().numpy().copy().fill(7)


def clipped_alone(data: Any, clip: Any) -> nn.Module:
    torch.manual_seed(5)
    module = Net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (module(data.features).squeeze(1) - data.targets).square().mean().backward()
        optimizer.step()
        clip(module)
    return module


def fit(way: Any, *callbacks: Callback) -> Any:
    return train(
        Net, table().cut(*PARTS), **of(way), epochs=STEPS,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), observation=Observation(callbacks=callbacks),
    )  # fmt: skip


@ALL
@pytest.mark.parametrize(
    ("clip", "hook"),
    crossed(
        [by_data, in_place, by_new_data, by_numpy], ["on_step_end", "on_epoch_end"],
        quick=[(by_data, "on_epoch_end"), (in_place, "on_step_end"), (by_new_data, "on_step_end"), (by_numpy, "on_step_end")],
    ),
)  # fmt: skip
def test_clipped_weights(way: Any, clip: Any, hook: str) -> None:
    """An epoch is one step."""
    callbacks = Bystander(), Clip(clip, hook)
    if of(way)["strategy"].can_take_changes:
        assert_same(fit(way, *callbacks), clipped_alone(table(), clip))
        return
    problem = rf"callback Clip\.{hook} on rank . at step 1 changes trained parameters, such as"
    if clip is by_numpy:
        problem = rf"callback Clip\.{hook} raised ValueError on rank . at step 1: assignment destination is read-only"
    with pytest.raises(CallbackError, match=problem):
        fit(way, *callbacks)


@ALL
def test_what_is_changed_back_or_changed_at_the_end(way: Any) -> None:
    """As a callback does that validates averaged weights, and ends with them."""

    class Swaps(Callback):
        def on_epoch_end(self, state: Any) -> None:
            kept = [parameter.detach().clone() for parameter in state.module.parameters()]
            by_data(state.module)
            for parameter, before in zip(state.module.parameters(), kept, strict=True):
                parameter.data.copy_(before)

        def on_train_end(self, state: Any) -> None:
            by_new_data(state.module)

    expected = clipped_alone(table(), lambda module: None)
    by_data(expected)
    loops = fit(way, Swaps())
    assert_same(loops, expected)
    for loop in loops:
        assert torch.equal(nn.utils.parameters_to_vector(loop.model.module.parameters()), loop.model.values)


class Onlooker(Callback):
    """Changes nothing."""

    def on_epoch_begin(self, state: Any) -> None:
        state.module.state_dict()


@pytest.mark.parametrize(
    ("hook", "epoch", "message"),
    [
        (
            "on_train_begin",
            1,
            "at step 1 .* hooks have run: Alone.on_train_begin, Onlooker.on_epoch_begin.* equally",
        ),
        (
            "on_epoch_begin",
            1,
            "at step 1 .* hooks have run: Alone.on_epoch_begin, Onlooker.on_epoch_begin.* equally",
        ),
        ("on_step_end", 1, "at step 1 .* hooks have run: Onlooker.on_epoch_begin, Alone.on_step_end.* equally"),
        (
            "on_step_end",
            2,
            "at step 2 .* since step 1, when .*: Onlooker.on_epoch_begin, Alone.on_step_end.* equally",
        ),
        (
            "on_epoch_end",
            2,
            "at step 2 .* since step 1, when .*: Onlooker.on_epoch_begin, Alone.on_epoch_end.* equally",
        ),
    ],
)
def test_a_change_on_one_rank_only(hook: str, epoch: int, message: str) -> None:
    """An epoch is one step. The hooks that may have made the change are named, and no others."""

    class Alone(Callback):
        def __init__(self) -> None:
            setattr(
                self, hook, lambda state: by_data(state.module) if state.rank == 0 and state.epoch == epoch else None
            )

    with pytest.raises(CallbackError, match=message):
        fit(Gathered, Alone(), Onlooker())


def test_a_parameter_of_another_shape() -> None:
    class Cuts(Callback):
        def on_step_end(self, state: Any) -> None:
            state.module[0].weight.data = torch.ones(2, 6)

    with pytest.raises(
        CallbackError, match=r"Cuts.on_step_end .* changes the shape or type of the trained parameter 0\.w"
    ):
        fit(Gathered, Cuts())
