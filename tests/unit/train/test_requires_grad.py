"""Parameters that are frozen or unfrozen while training goes on: as in plain torch, or refused at once."""

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from sparkdl_comm import Callback
from sparkdl_comm.errors import ModelError
from sparkdl_comm.train.spec import Observation
from tests.slow import crossed
from tests.unit.ranks import Gathered, train
from tests.unit.strategies.test_used_parameters import ALL, PARTS, alone, assert_same, of, table

EPOCHS = 7
#: Whether the body is trained, epoch by epoch.
TRAINED = (False, False, True, True, False, True, True)


class Net(nn.Module):
    """A body that the model itself freezes and unfreezes in forward, if ``by_itself``."""

    def __init__(self, by_itself: bool = False) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 1)
        self.by_itself, self.calls = by_itself, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.by_itself and self.training:
            self.body.requires_grad_(TRAINED[self.calls])
            self.calls += 1
        return self.head(torch.tanh(self.body(x)))


class Schedule(Callback):
    """Freezes and unfreezes the body from epoch to epoch."""

    def on_train_begin(self, state: Any) -> None:
        state.module.body.requires_grad_(TRAINED[0])

    def on_epoch_end(self, state: Any) -> None:
        if state.epoch < len(TRAINED):
            state.module.body.requires_grad_(TRAINED[state.epoch])


class Unfreeze(Callback):
    def on_epoch_end(self, state: Any) -> None:
        state.module.requires_grad_(True)


class KeepsAnAlias(Net):
    """Keeps its weight under a second name, as a cache of a layer may."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cached = self.body.weight
        return super().forward(x)


class Prunes(Callback):
    """Prunes the body after the second step, which renames its weight."""

    def on_step_end(self, state: Any) -> None:
        if state.step == 2:
            prune.l1_unstructured(state.module.body, "weight", amount=1)


def frozen() -> Net:
    net = Net()
    net.body.requires_grad_(False)
    return net


class UnfreezesItself(Net):
    """Its body is frozen until the third forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.body.requires_grad_(self.calls > 2)
        return super().forward(x)


class Grows(Net):
    """Gets a layer while it is trained."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "more"):
            self.more = nn.Linear(1, 1)
        return self.more(super().forward(x))


class Fixes(Net):
    """Makes a parameter a buffer in the third forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3:
            weight = self.body.weight.detach()
            del self.body.weight
            self.body.register_buffer("weight", weight)
        return super().forward(x)


OPTIMIZERS = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.05, weight_decay=0.5),
}


@ALL
@pytest.mark.parametrize(
    ("by", "name"), crossed(["callback", "model"], OPTIMIZERS, quick=[("callback", "SGD"), ("model", "AdamW")])
)
def test_a_trainable_layer_that_is_frozen_for_some_epochs(way: Any, by: str, name: str) -> None:
    data, itself, optimizer = table(), by == "model", OPTIMIZERS[name]
    observation = Observation() if itself else Observation(callbacks=(Schedule(),))
    loops = train(
        lambda: Net(itself), data.cut(*PARTS), **of(way), epochs=EPOCHS, optimizer=optimizer,
        observation=observation,
    )  # fmt: skip
    assert_same(loops, alone(lambda: Net(True), data, optimizer))


@ALL
@pytest.mark.parametrize(
    ("make", "observation", "name"),
    [
        (frozen, Observation(callbacks=(Unfreeze(),)), "body.weight"),
        (UnfreezesItself, Observation(), "body.weight"),
        (Grows, Observation(), "more.weight"),
    ],
    ids=["callback", "model", "grows"],
)
def test_what_no_optimizer_has_is_refused_at_once(way: Any, make: Any, observation: Any, name: str) -> None:
    def prepare(loop: Any) -> None:
        loops[loop._rank] = loop

    loops: dict[int, Any] = {}
    with pytest.raises(ModelError, match=rf"parameter {name} requires a gradient now, .* freeze it in a callback's"):
        train(
            make, table().cut(*PARTS), **of(way), epochs=EPOCHS, observation=observation,
            prepare=prepare,
        )  # fmt: skip
    first = {"body.weight": 2 if make is UnfreezesItself else 1, "more.weight": 0}[name]
    made = loops[0].progress.step if 0 in loops else 0  # another rank may find it before this one begins
    assert made == first, "the step at which it changed is not made"


@ALL
def test_a_parameter_that_becomes_a_buffer_is_refused_at_once(way: Any) -> None:
    with pytest.raises(ModelError, match="body.weight is no longer a parameter of the model, .* freeze it"):
        train(Fixes, table().cut(*PARTS), **of(way), epochs=EPOCHS)


@ALL
def test_a_parameter_that_gets_another_name_is_refused_at_once(way: Any) -> None:
    with pytest.raises(ModelError, match="parameter body.weight has the new name weight_orig now.* Prune"):
        train(Net, table().cut(*PARTS), **of(way), epochs=EPOCHS, observation=Observation(callbacks=(Prunes(),)))


@ALL
def test_a_second_name_is_refused_at_once(way: Any) -> None:
    """It may come before the first one, and the trained model would be sent under it."""
    with pytest.raises(ModelError, match="parameter body.weight has the new name cached now.* second name"):
        train(KeepsAnAlias, table().cut(*PARTS), **of(way), epochs=EPOCHS)


def test_a_resumed_fit_is_frozen_where_it_was() -> None:
    """The callback froze the body at the end of an epoch that is not made again."""
    data, kept = table(), {}

    class Late(Callback):
        def on_epoch_end(self, state: Any) -> None:
            state.module.body.requires_grad_(state.epoch != 2)

    def keep(loop: Any) -> None:
        if loop.progress.step == 5:
            kept.update(state=loop.state(), values=loop.model.values.clone())

    def resume(loop: Any) -> None:
        loop.model.values.copy_(kept["values"])
        loop.load_state(kept["state"])
        froze.append(loop.model.module.body.weight.requires_grad)

    froze: list[bool] = []
    settings: dict[str, Any] = {
        "strategy": Gathered, "batch": 12, "epochs": 3, "observation": Observation(callbacks=(Late(),)),
        "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
    }  # fmt: skip
    # Two steps an epoch: the fifth is in the third epoch, for which the body was frozen.
    (whole,) = train(Net, data.cut(24), prepare=lambda loop: setattr(loop, "after_step", keep), **settings)
    (rest,) = train(Net, data.cut(24), prepare=resume, **settings)
    assert froze == [False]
    assert torch.equal(whole.model.values, rest.model.values)
