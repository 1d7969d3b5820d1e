"""The training loop on ranks of unequal size, one of them empty: the same as torch in one process."""

import copy
import functools
import math
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.errors import ConfError, ModelError, NonFiniteLossError
from sparkdl_comm.train.spec import Observation, Stopping

from .ranks import Gathered, Rows, Sharded, train

ROWS, PARTS = 24, (11, 0, 13)
BOTH = pytest.mark.parametrize("strategy", [Gathered, Sharded])


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))


class Bag(nn.Sequential):
    """Sparse gradients, and a layer that no step uses."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(50, 4, sparse=True), nn.Flatten(), nn.Linear(24, 1))
        self.add_module("3", nn.Identity())
        self[3].unused = nn.Linear(2, 2)


def table(*, weights: bool = False, integers: bool = False) -> Rows:
    random = torch.Generator().manual_seed(3)
    features = torch.randn(ROWS, 6, generator=random)
    if integers:
        features = torch.randint(0, 50, (ROWS, 6), generator=random)
    weight = torch.rand(ROWS, generator=random) + 0.1
    return Rows(features, torch.randn(ROWS, generator=random), weight / weight.mean() if weights else None)


def reference(
    make: Any, data: Rows, steps: int, clip: float | None = None, groups: Any = None, rate: Any = None
) -> Any:
    torch.manual_seed(5)
    module = make()
    optimizer = torch.optim.SGD(groups(module) if groups else module.parameters(), lr=0.1, momentum=0.9)
    scheduler = rate(optimizer) if rate else None
    for _ in range(steps):
        optimizer.zero_grad()
        losses = (module(data.features).squeeze(1) - data.targets) ** 2
        (losses if data.weights is None else losses * data.weights).mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
    return module


def momentum(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def assert_same(loops: Any, module: nn.Module) -> None:
    expected = nn.utils.parameters_to_vector(module.parameters())
    torch.manual_seed(5)
    start = nn.utils.parameters_to_vector(type(module)().parameters())
    assert (expected - start).norm() / start.norm() > 1e-2, "training changed nothing, so the comparison shows nothing"
    for loop in loops:
        got = nn.utils.parameters_to_vector(loop.model.module.parameters())
        assert (got - expected).norm() / expected.norm() <= 1e-5


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

    with pytest.raises(ModelError, match=r"a torch.nn.Parameter of shape \[1\] that is none of the model's"):
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
    known = {"total_steps": 12} if factory is one_cycle or getattr(factory, "keywords", None) == {"max_lr": 0.2} else {}
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
    with pytest.raises(ConfError, match="OneCycleLR has total_steps=11, and training takes 12: leave out total_steps"):
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


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.functional.l1_loss, nn.SmoothL1Loss()])
def test_an_output_that_torch_would_broadcast(loss: Any) -> None:
    def wide() -> nn.Module:
        return nn.Linear(6, ROWS)

    with pytest.raises(
        ModelError, match=r"the model's output is \[24\] per row, and the label \[\]; this loss compares"
    ):
        train(wide, table().cut(ROWS), loss=loss)


def scalar_loss(shape: Any) -> Any:
    return lambda output, target: torch.ones(shape) * output.sum()


@pytest.mark.parametrize("loss", [scalar_loss(3), lambda output, target: 1.0])
def test_a_loss_that_is_no_scalar(loss: Any) -> None:
    with pytest.raises(ModelError, match="must return a scalar tensor"):
        train(Net, table().cut(ROWS), loss=loss)


@BOTH
def test_fp16_skips_on_overflow_and_ends_like_fp32(strategy: Any) -> None:
    made: list[Any] = []
    loops = train(
        Net, table().cut(*PARTS), strategy=strategy, epochs=5, precision="fp16", prepare=lambda loop: made.append(
            setattr(loop._rule, "scale", 2.0**127)
        ), optimizer=momentum,
    )  # fmt: skip
    scales = {loop._rule.scale for loop in loops}
    assert len(scales) == 1, "all ranks skip the same steps"
    assert scales.pop() < 2.0**127, "the first steps overflow"


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast(precision: str, dtype: torch.dtype) -> None:
    seen = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append(output.dtype)
        return ((output.float() - target) ** 2).mean()

    loops = train(Net, table().cut(ROWS), epochs=5, precision=precision, optimizer=momentum, loss=loss)
    assert set(seen) == {dtype}
    expected = nn.utils.parameters_to_vector(reference(Net, table(), 5).parameters())
    got = nn.utils.parameters_to_vector(loops[0].model.module.parameters())
    assert 1e-6 < (got - expected).norm() / expected.norm() < 2e-2


def test_a_gradient_that_is_not_finite_is_named() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(output - output.detach()).mean()  # 0, with an infinite slope

    with pytest.raises(NonFiniteLossError, match="the gradient's norm became .* at step 1"):
        train(Net, table().cut(ROWS), max_grad_norm=1.0, loss=loss)


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


@BOTH
def test_a_gradient_that_spoils_the_last_step(strategy: Any) -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(output - output.detach()).mean()  # 0, with an infinite slope, and no step after it to notice

    with pytest.raises(
        NonFiniteLossError, match="after step 1 parameter 0.bias has values that are NaN or infinite"
    ) as caught:
        train(Net, table().cut(*PARTS), strategy=strategy, epochs=1, loss=loss)
    assert caught.value.step == 1


def test_infinite_parameters_that_training_did_not_make() -> None:
    class Masked(Net):
        def __init__(self) -> None:
            super().__init__()
            self.mask = nn.Parameter(torch.tensor([0.0, -torch.inf]))

    assert train(Masked, table().cut(*PARTS), epochs=1)


@BOTH
def test_an_infinite_loss_in_fp16_is_a_step_that_is_skipped(strategy: Any) -> None:
    calls = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(0)
        return (output.float() - target).square().mean() * (torch.inf if len(calls) == 1 else 1.0)

    loops = train(Net, table().cut(24), strategy=strategy, epochs=4, loss=loss, precision="fp16")
    history = loops[0].progress.history
    assert [row["skipped_steps"] for row in history] == [1, 0, 0, 0]
    assert math.isnan(history[0]["loss"])
    assert all(math.isfinite(row["loss"]) for row in history[1:])


def test_a_loss_that_stays_infinite_in_fp16() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.mean() * torch.inf

    with pytest.raises(
        NonFiniteLossError, match="at step 17, though the loss is scaled down to 1 .precision='fp16': try bf16"
    ):
        train(Net, table().cut(*PARTS), epochs=30, loss=loss, precision="fp16")
