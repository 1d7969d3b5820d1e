"""The training loop on ranks of unequal size, one of them empty: the same as torch in one process."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.errors import ModelError
from tests.unit.loop_helpers import BOTH, PARTS, ROWS, Net, assert_same, momentum, reference, table
from tests.unit.ranks import train


class Bag(nn.Sequential):
    """Sparse gradients, and a layer that no step uses."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(50, 4, sparse=True), nn.Flatten(), nn.Linear(24, 1))
        self.add_module("3", nn.Identity())
        self[3].unused = nn.Linear(2, 2)


@BOTH
@pytest.mark.parametrize("clip", [0.05, 1e9])
def test_clipping(strategy: Any, clip: float) -> None:
    loops = train(Net, table().cut(*PARTS), strategy=strategy, epochs=6, optimizer=momentum, max_grad_norm=clip)
    assert_same(loops, reference(Net, table(), 6, clip))
    unclipped = nn.utils.parameters_to_vector(reference(Net, table(), 6).parameters())
    got = nn.utils.parameters_to_vector(loops[0].model.module.parameters())
    assert ((got - unclipped).norm() > 1e-2) == (clip < 1)


@BOTH
def test_weights(strategy: Any) -> None:
    data = table(weights=True)
    loops = train(
        Net, data.cut(*PARTS), strategy=strategy, epochs=6, optimizer=momentum, loss=nn.MSELoss(reduction="none")
    )
    assert_same(loops, reference(Net, data, 6))
    with pytest.raises(ModelError, match="with weightCol it must return one loss per row"):
        train(Net, data.cut(*PARTS), loss=nn.MSELoss())


@pytest.mark.parametrize("make", [Net, Bag])
def test_accumulation_is_one_step_on_all_its_rows(make: Any) -> None:
    data = table(integers=make is Bag)
    loops = train(make, data.cut(*PARTS), epochs=5, batch=6, accumulation_steps=4, optimizer=momentum)
    assert loops[0].progress.step == 5
    assert_same(loops, reference(make, data, 5))


@BOTH
@pytest.mark.parametrize("where", ["the loss", "a list of the model"])
def test_parameters_that_nothing_would_train(strategy: Any, where: str) -> None:
    scale = nn.Parameter(torch.full((1,), 2.0))
    before = []

    class Listed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.scales = [nn.Parameter(torch.ones(1))]

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return super().forward(rows) * self.scales[0]

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((output - target) ** 2).mean() * (scale if where == "the loss" else 1.0)

    def arrive(spec: Any, gang: Any, model: Any) -> None:
        before.append(model)

    with pytest.raises(ModelError, match=r"a torch.nn.Parameter of shape \[1\] that the model does not have"):
        train(Net if where == "the loss" else Listed, table().cut(ROWS), strategy=strategy, loss=loss, arrive=arrive)
    torch.manual_seed(5)
    start = nn.utils.parameters_to_vector(Net().parameters())
    assert torch.equal(nn.utils.parameters_to_vector(before[0].module.parameters()), start), "before the first update"
    scale.requires_grad_(False)
    assert train(Net, table().cut(*PARTS), strategy=strategy, loss=loss)


class Scaled(Net):
    """What the message about a loss with parameters says to do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = super().forward(rows)
        return output, self.scale.expand(len(output))


@BOTH
def test_parameters_of_a_loss_that_the_model_has_are_trained(strategy: Any) -> None:
    def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
        values, scale = output
        return ((values.squeeze(1) * scale - target) ** 2).mean()

    loops = train(Scaled, table().cut(*PARTS), strategy=strategy, loss=loss, epochs=6, optimizer=momentum)
    torch.manual_seed(5)
    module = Scaled()
    optimizer = momentum(module.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        loss(module(table().features), table().targets).backward()
        optimizer.step()
    assert_same(loops, module)
    assert abs(float(loops[1].model.module.scale.detach()) - 1.0) > 1e-3
    assert loops[1].progress.output_shape in (None, {"output0": [1], "output1": []})


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.functional.l1_loss, nn.SmoothL1Loss()])
def test_an_output_that_torch_would_broadcast(loss: Any) -> None:
    def wide() -> nn.Module:
        return nn.Linear(6, ROWS)

    with pytest.raises(
        ModelError, match=r"the model's output is \[24\] per row, and the label \[\]. This loss compares"
    ):
        train(wide, table().cut(ROWS), loss=loss)


def scalar_loss(shape: Any) -> Any:
    return lambda output, target: torch.ones(shape) * output.sum()


@pytest.mark.parametrize("loss", [scalar_loss(3), lambda output, target: 1.0])
def test_a_loss_that_is_no_scalar(loss: Any) -> None:
    with pytest.raises(ModelError, match="must return a scalar tensor"):
        train(Net, table().cut(ROWS), loss=loss)


class Noisy(nn.Sequential):
    """Dropout, which draws, and statistics, which every rank has of its own."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Dropout(0.3), nn.Linear(9, 1))


@pytest.mark.parametrize("stop", [3, 4, 7])
def test_resumed_in_the_middle_of_an_epoch_and_at_its_end(stop: int) -> None:
    """4 steps per epoch. One rank: torch's generator belongs to the process, so threads would share it."""
    kept: dict[str, Any] = {}

    def keep(loop: Any) -> None:
        if loop.progress.step == stop:
            kept["loop"] = copy.deepcopy(loop.state())
            kept["optimizer"] = copy.deepcopy(loop.strategy.optimizer_state())
            kept["values"] = loop.model.values.clone()

    def resume(loop: Any) -> None:
        torch.manual_seed(1234)
        loop.model.values.copy_(kept["values"])
        loop.strategy.load_optimizer_state(kept["optimizer"])
        loop.load_state(kept["loop"])

    def rate(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=100)

    settings: dict[str, Any] = {"batch": 6, "optimizer": momentum, "lr_scheduler": rate, "scheduler_interval": "step"}
    data = table().cut(ROWS)
    (whole,) = train(Noisy, data, prepare=lambda loop: setattr(loop, "after_step", keep), **settings)
    (resumed,) = train(Noisy, data, prepare=resume, **settings)
    assert whole.progress.step == resumed.progress.step == 12
    assert torch.equal(whole.model.values, resumed.model.values)
    for name, buffer in whole.model.module.named_buffers():
        assert torch.equal(buffer, dict(resumed.model.module.named_buffers())[name])
    assert [row["loss"] for row in whole.progress.history] == [row["loss"] for row in resumed.progress.history]
