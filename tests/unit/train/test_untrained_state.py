"""State that no optimizer updates and that training changes: the same as torch in one process, under every strategy."""

import copy
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl_comm.data.partitions import BatchSampler, permutation
from sparkdl_comm.errors import ModelError
from sparkdl_comm.space import untrained_state
from sparkdl_comm.space.module_state import modules_of
from sparkdl_comm.train.objective import move_to_device
from sparkdl_comm.train.spec import Observation, Stopping
from tests.slow import slow
from tests.unit.ranks import Gathered, Rows, Sharded, train
from tests.unit.strategies.test_used_parameters import ALL, PARTS, of, table
from tests.unit.train.test_resume import Fit

EPOCHS = 7


class Momentum(nn.Module):
    """A frozen copy of the encoder that forward moves towards the trained one; buffers that come late, and grow."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(6, 5), nn.Linear(5, 1)
        self.target = copy.deepcopy(self.encoder).requires_grad_(False)
        self.grown: torch.Tensor | None
        self.register_buffer("grown", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.move()
        return self.head(torch.tanh(self.encoder(x)) + self.target(x)) * (1 + 0.1 * self.late)

    @torch.no_grad()
    def move(self) -> None:
        for target, source in zip(self.target.parameters(), self.encoder.parameters(), strict=True):
            target.data = target.data * 0.7 + source.data * 0.3
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.zeros(()))
        self.late += len(self.grown) if self.grown is not None else 1
        self.grown = torch.ones(1) if self.grown is None else torch.cat([self.grown, torch.ones(1)])


class Warming(nn.Module):
    """A loss that counts its calls in training, and weighs errors by their number; with a frozen parameter that it moves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.margin = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
            self.margin *= 0.8
        return (output - target * self.margin).square().mean() / self.calls


def optimizer(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def alone(make: Any, data: Rows, steps: int, loss: Any) -> nn.Module:
    """Trained on all rows at once in this process."""
    torch.manual_seed(5)
    module, loss = make(), copy.deepcopy(loss)
    made = optimizer([parameter for parameter in module.parameters() if parameter.requires_grad])
    for _ in range(steps):
        made.zero_grad()
        loss(module(data.features).squeeze(1), data.targets).backward()
        made.step()
    return module


def assert_same(loops: Any, expected: nn.Module, ranks: tuple[int, ...] = (0, 1, 2)) -> None:
    """Parameters, frozen ones among them, and buffers."""
    for rank in ranks:
        got = loops[rank].model.module.state_dict()
        assert list(got) == list(expected.state_dict())
        for name, wanted in expected.state_dict().items():
            torch.testing.assert_close(
                got[name], wanted, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
            )


@ALL
@pytest.mark.parametrize("loss", [slow(nn.MSELoss()), Warming()], ids=["plain", "warming"])
def test_a_resumed_fit(tmp_path: Path, way: Any, loss: Any) -> None:
    check_resumed(tmp_path, loss, **of(way))


def check_resumed(tmp_path: Path, loss: Any, **how: Any) -> None:
    """Check that a resumed fit ends as one process does."""
    data = table()
    settings: dict[str, Any] = {
        "make": Momentum, "parts": data.cut(*PARTS), "validation": data.cut(*PARTS), "loss": loss, "batch": 10**6,
        "optimizer": optimizer, "lr_scheduler": None, **how,
        "observation": Observation(stopping=Stopping(patience=100, restore=False)),
    }  # fmt: skip
    Fit(tmp_path, epochs=3, **settings)
    rest = Fit(tmp_path, epochs=EPOCHS, resume=True, **settings)
    assert rest.restorers[0].step == 2
    assert_same(rest.loops, alone(Momentum, data, EPOCHS, loss))


def halved(output: torch.Tensor, target: torch.Tensor, of: Any) -> torch.Tensor:
    return of(output, target) / 2


WRAPPED = pytest.mark.parametrize(
    "wrap",
    [
        functools.partial,
        lambda loss: loss.forward,
        lambda loss: functools.partial(functools.partial(loss.forward)),
        lambda loss: functools.partial(halved, of=loss),
    ],
    ids=["partial", "method", "both", "argument"],
)


@WRAPPED
def test_a_loss_inside_of_a_partial_or_method(tmp_path: Path, wrap: Any) -> None:
    """Validation leaves its state alone, and a resumed fit goes on from it."""
    check_resumed(tmp_path, wrap(Warming()), strategy=Gathered)


@WRAPPED
def test_tensors_of_a_wrapped_loss_move_to_the_device(wrap: Any) -> None:
    moved = move_to_device(wrap(Warming()), torch.device("meta"))
    (module,) = modules_of(moved)
    assert {str(tensor.device) for tensor in (*module.parameters(), *module.buffers())} == {"meta"}


def test_tensors_bound_to_a_loss_move_to_the_device() -> None:
    loss = functools.partial(nn.functional.cross_entropy, weight=torch.ones(3), ignore_index=2)
    moved: Any = move_to_device(loss, torch.device("meta"))
    assert (str(moved.keywords["weight"].device), moved.keywords["ignore_index"]) == ("meta", 2)


@pytest.mark.parametrize("rows", [(14, 9, 1), (14, 1, 9), (1, 14, 9)])
def test_a_buffer_that_a_rank_does_not_have_yet(tmp_path: Path, rows: tuple[int, ...]) -> None:
    """A rank without rows in the first steps has had no forward pass in training when the checkpoint is written."""
    parts = table().cut(*rows)
    settings: dict[str, Any] = {"make": Momentum, "parts": parts, "validation": parts, "batch": 8, "strategy": Gathered}
    whole = Fit(tmp_path / "whole", epochs=2, **settings)
    Fit(tmp_path / "parts", epochs=1, **settings)
    rest = Fit(tmp_path / "parts", epochs=2, resume=True, **settings)
    assert rest.restorers[0].step == 2
    for one, other in zip(rest.loops, whole.loops, strict=True):
        assert_same([one], other.model.module, (0,))


class Uneven(NamedTuple):
    """Rows of the ranks, in steps in which some of them have none, or fewer than the step has parts."""

    rows: tuple[int, ...]
    batch: int
    accumulation: int = 1


@pytest.mark.parametrize(
    "case", [Uneven((3, 3), 1), Uneven((14, 9, 1), 8), Uneven((2, 0, 22), 6), Uneven((3, 9, 12), 3, 3)]
)
@pytest.mark.parametrize("strategy", [Gathered, Sharded])
def test_steps_in_which_a_rank_has_no_rows(case: Uneven, strategy: Any) -> None:
    """Copies move once in each step, and rows see the same copy on every rank, as in one process."""
    data, epochs = Rows(*(column[: sum(case.rows)] for column in (table().features, table().targets))), 2
    settings: dict[str, Any] = {"batch": case.batch, "epochs": epochs, "accumulation_steps": case.accumulation}
    loops = train(Momentum, data.cut(*case.rows), strategy=strategy, optimizer=optimizer, loss=Warming(), **settings)
    assert_same(loops, in_steps(case, data, epochs), tuple(range(len(case.rows))))


def in_steps(case: Uneven, data: Rows, epochs: int) -> nn.Module:
    """Trained in this process. The parts of a step are those of the rank that has most parts, with the others' rows."""
    torch.manual_seed(5)
    module, loss = Momentum(), Warming()
    made = optimizer([parameter for parameter in module.parameters() if parameter.requires_grad])
    sampler = BatchSampler.of(case.rows, case.batch * case.accumulation)
    starts = [sum(case.rows[:rank]) for rank in range(len(case.rows))]
    for epoch in range(epochs):
        orders = [permutation(count, 5, epoch, rank) + starts[rank] for rank, count in enumerate(case.rows)]
        for step in range(sampler.steps):
            mine = [order[slice(*sampler.slice(rank, step))] for rank, order in enumerate(orders)]
            parts = [torch.from_numpy(rows).tensor_split(case.accumulation) for rows in mine]
            made.zero_grad()
            for several in zip(*parts, strict=True):
                index = torch.cat(several)
                if len(index):
                    value = loss(module(data.features[index]).squeeze(1), data.targets[index])
                    (value * len(index) / sampler.rows(step)).backward()
            made.step()
    return module


@ALL
def test_the_best_model(way: Any) -> None:
    """The first epoch is the one that is asked for."""
    data = table()
    loops = train(
        Momentum, data.cut(*PARTS), **of(way), epochs=4, optimizer=optimizer,
        observation=Observation(stopping=Stopping(patience=100, monitor="loss", mode="max")),
    )  # fmt: skip
    losses = [row["loss"] for row in loops[0].progress.history]
    assert losses[0] == max(losses)
    assert loops[0].progress.step == 4
    assert_same(loops, alone(Momentum, data, 1, nn.MSELoss()))


class Drawn(nn.Module):
    """Whatever numpy draws: a trained layer, a frozen one, buffers, and extra state."""

    def __init__(self, random: np.random.Generator) -> None:
        super().__init__()

        def draw(*shape: int) -> torch.Tensor:
            return torch.from_numpy(random.normal(size=shape).astype(np.float32))

        self.trained = nn.Parameter(draw(6, 4))
        self.frozen = nn.Parameter(draw(4, 1), requires_grad=False)
        self.register_buffer("scale", draw(1))
        self.register_buffer("shift", draw(6), persistent=False)
        self.register_buffer("table", draw(int(random.integers(1, 9))))  # not even its shape is alike
        self.factor = float(random.normal())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            torch.tanh((x + self.shift) @ self.trained) @ self.frozen
        ) * self.scale * self.factor + self.table.mean()

    def get_extra_state(self) -> float:
        return self.factor

    def set_extra_state(self, state: float) -> None:
        self.factor = state


@ALL
def test_ranks_begin_with_what_rank_0_drew(way: Any) -> None:
    data, random = table(), np.random.default_rng(2)
    loops = train(lambda: Drawn(random), data.cut(*PARTS), **of(way), epochs=EPOCHS, optimizer=optimizer)
    expected = alone(lambda: Drawn(np.random.default_rng(2)), data, EPOCHS, nn.MSELoss())
    assert_same(loops, expected)
    assert {loop.model.module.factor for loop in loops} == {expected.factor}


class Odd(nn.Module):
    """Buffers that torch does not write in place: made by expand, of which training makes others, and sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)
        self.register_buffer("offset", torch.ones(1).expand(6))
        self.register_buffer("mix", torch.eye(6).to_sparse(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.offset = (self.offset[:1] * 0.5).expand(6)
        return self.layer(torch.sparse.mm(self.mix, x.t()).t() + self.offset)


def test_buffers_that_torch_does_not_write(tmp_path: Path) -> None:
    data = table()
    settings: dict[str, Any] = {
        "make": Odd, "parts": data.cut(*PARTS), "batch": 10**6, "optimizer": optimizer, "lr_scheduler": None,
        "observation": Observation(stopping=Stopping(patience=100, monitor="loss", mode="max")),
    }  # fmt: skip
    Fit(tmp_path, Gathered, epochs=3, **settings)
    rest = Fit(tmp_path, Gathered, epochs=EPOCHS, resume=True, **settings)
    assert rest.restorers[0].step == 2
    assert_same(rest.loops, alone(Odd, data, 1, nn.MSELoss()))


def quantized(values: torch.Tensor, scales: float | torch.Tensor) -> torch.Tensor:
    if isinstance(scales, float):
        return torch.quantize_per_tensor(values, scales, 0, torch.qint8)
    return torch.quantize_per_channel(values, scales, torch.zeros(len(scales)), 0, torch.qint8)


@pytest.mark.parametrize(
    "of_rank",
    [
        lambda rank: (rank + torch.eye(6)).to_sparse(),
        lambda rank: (rank + torch.eye(6)).to_sparse_csr(),
        lambda rank: (rank + torch.eye(6)).to_sparse_csc(),
        lambda rank: quantized(torch.eye(6), 0.5 + rank),
        lambda rank: quantized(torch.eye(6), torch.tensor([0.5, 0.5, 0.5 + rank, 0.5, 0.5, 0.5])),
        lambda rank: torch.eye(6).to_sparse() if rank == 1 else torch.eye(6),
    ],
    ids=["coo", "csr", "csc", "quantized", "per channel", "on one rank"],
)
def test_tensors_that_are_not_sent_must_be_equal(of_rank: Callable[[int], torch.Tensor]) -> None:
    """Ranks 0 and 2 have the same one."""
    made = itertools.count()

    def make(differ: bool) -> nn.Module:
        module = nn.Sequential(nn.Linear(6, 1))
        module.register_buffer("mix", of_rank(int(differ and next(made) == 1)), persistent=False)
        return module

    with pytest.raises(ModelError, match=r"model\.mix differs between ranks .* sparse or quantized"):
        train(lambda: make(True), table().cut(*PARTS))
    train(lambda: make(False), table().cut(*PARTS))


def test_a_part_with_extra_state_that_only_rank_0_has() -> None:
    data, made = table(), []

    def make() -> nn.Module:
        made.append(nn.Sequential(nn.Linear(6, 1)))
        if len(made) == 1:
            made[0].noted = Noting()
        return made[-1]

    with pytest.raises(ModelError, match=r"extra state of a part model\.noted, which the model lacks here"):
        train(make, data.cut(*PARTS))


class Noting(nn.Identity):
    def get_extra_state(self) -> float:
        return 1.0

    def set_extra_state(self, state: float) -> None:
        assert state == 1.0


class Apart(nn.Module):
    """Frozen parameters and a buffer that become others on each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)
        self.large = nn.ParameterList(nn.Parameter(torch.zeros(3000), requires_grad=False) for _ in range(4))
        self.small = nn.ParameterList(nn.Parameter(torch.zeros(2), requires_grad=False) for _ in range(20))
        self.register_buffer("grown", torch.zeros(1))

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for tensor in (*self.large, *self.small):
            tensor += x[0, 0]
        self.grown = torch.ones(len(x))
        with torch.enable_grad():
            return self.layer(x)


def test_copies_that_differ_do_not_come_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank holds more than one large tensor of another rank, or several small ones."""
    received: list[tuple[int, int]] = []
    gather = untrained_state.gather_tensors

    def record(*arguments: Any) -> Any:
        result = gather(*arguments)
        tensors = [tensor for theirs in result for tensor in theirs]
        received.append((len(tensors), sum(tensor.nbytes for tensor in tensors)))
        return result

    monkeypatch.setattr(untrained_state, "gather_tensors", record)
    monkeypatch.setattr(untrained_state, "_GROUP_BYTES", 2000)
    loops = train(Apart, table().cut(*PARTS), epochs=1)
    states = [loop.model.module.state_dict() for loop in loops]
    for name, value in states[0].items():
        assert all(torch.equal(value, other[name]) for other in states), name
    assert len(states[0]["grown"]) == PARTS[0], "its shapes differ: the first rank's with rows"
    assert max(size for _, size in received) == 12_000
    assert max(count for count, _ in received) > 20, "small ones come together"


def test_frozen_tensors_are_written_once(tmp_path: Path) -> None:
    """Rank 0 writes what all have; another rank what it has otherwise, here the state of a rank without rows."""
    import safetensors

    data = table()
    Fit(tmp_path, Gathered, epochs=3, make=Momentum, batch=10**6, parts=data.cut(*PARTS), lr_scheduler=None)
    sizes = {}
    for part in ("common", "rank-0", "rank-1", "rank-2"):
        with safetensors.safe_open(str(tmp_path / "step-00000002" / f"{part}.safetensors"), "pt") as file:
            sizes[part] = sum(list(file.get_slice(name).get_shape()) == [5, 6] for name in file.keys())  # noqa: SIM118
    assert sizes == {"common": 1 + 1, "rank-0": 0, "rank-1": 1, "rank-2": 0}, "of common, one is the best model's"
