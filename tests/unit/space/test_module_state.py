"""Module state beyond parameters and buffers: it comes back, or is refused before training."""

import copy
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.errors import ModelError
from sparkdl_comm.gang.tensors import describe
from sparkdl_comm.ml.components import check_model
from sparkdl_comm.ml.weights import read_weights, write_weights
from sparkdl_comm.space import module_state
from sparkdl_comm.train.spec import Observation, Stopping
from tests.nets import Counting, Fresh, LateSparse, Tied
from tests.unit.job.test_trained_module import trained_module
from tests.unit.ranks import Rows, train


class Holder(nn.Module):
    """Has whatever state it is given, below a part named ``inner``."""

    def __init__(self, state: Any, takes: Any = None) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.inner = Stateful(state, takes)


class Stateful(nn.Module):
    def __init__(self, state: Any, takes: Any) -> None:
        super().__init__()
        self.state, self.takes = state, takes

    def get_extra_state(self) -> Any:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    def set_extra_state(self, state: Any) -> None:
        if self.takes is not None:
            self.takes(state)
        self.state = state


class OneWay(nn.Linear):
    def get_extra_state(self) -> int:
        return 1


class Sparse(nn.Linear):
    """Layer with a buffer that has no plain bytes."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("mix", torch.eye(2).to_sparse())


class Odder(nn.Linear):
    """With a buffer of a type that cannot be sent."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("odd", torch.empty(2, dtype=torch.bits8))


class Hidden(nn.Linear):
    """Adds to its state_dict what no parameter and no buffer has."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "scale"] = torch.ones(1)


def arrived(module: nn.Module, made: Any) -> nn.Module:
    """The trained module on the driver, when ``module`` was trained on rank 0."""
    warnings: list[str] = []
    tensors = module_state.pack_state(module, warnings.append)
    describe(tensors)  # they can be sent
    assert not warnings
    return trained_module(made, {name: tensor.clone() for name, tensor in tensors.items()})


@pytest.mark.parametrize("given", [Counting(), Counting])
def test_it_comes_back(given: Any) -> None:
    module = Counting()
    module(torch.ones(2, 3))
    module(torch.ones(1, 3) * 7)
    back = arrived(module, given)
    assert back.seen == {"calls": 2, "rows": [2, 1], "raw": b"\xff"}
    assert torch.equal(back.last, torch.full((1, 3), 7.0))
    nested = nn.Sequential(Fresh(), copy.deepcopy(module))
    nested[0].steps = 9
    back = arrived(nested, nn.Sequential(Fresh(), Counting()))
    assert (back[0].steps, back[1].seen["calls"]) == (9, 2)
    assert not arrived(Tied(), Tied).training


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (Holder({"a": [set()]}), r"part inner \(Stateful\) returns .*value\['inner'\]\['a'\]\[0\] is builtins.set"),
        (Holder({"a;b": {1}}), r"value\['inner'\]\['a;b'\] is builtins.set. Only numbers"),
        (Holder(nn.Linear(1, 1)), r"value\['inner'\] is torch.nn.modules.linear.Linear"),
        (OneWay(1, 1), r"the model \(OneWay\) has get_extra_state, but no set_extra_state"),
        (
            Sparse(1, 1),
            r"mix in the module's state_dict is a tensor that cannot be sent .torch.float32, torch.sparse_coo",
        ),
        (Odder(1, 1), r"odd in the module's state_dict is a tensor that cannot be sent .torch.bits8"),
        (Hidden(1, 1), r"scale in the module's state_dict is neither a parameter nor a buffer"),
    ],
)
def test_refused_before_training(module: nn.Module, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        check_model(module)


def test_a_part_that_does_not_take_back_what_arrives() -> None:
    pair = namedtuple("pair", "left right")
    module = Holder(pair(1, 2), takes=lambda state: state.left)
    check_model(module)
    with pytest.raises(ModelError, match=r"inner \(Stateful\) does not take back .*AttributeError"):
        module_state.check_round_trip(module)


class LateState(nn.Linear):
    """Has extra state that cannot be sent from the first forward pass on."""

    state: Any = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = {1}
        return super().forward(x)

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (
            LateSparse,
            r"mix in the module's state_dict is a tensor that cannot be sent .torch.float32, torch.sparse_coo",
        ),
        (lambda: LateState(2, 1), r"get_extra_state of the model \(LateState\) returns .*value\[''\] is builtins.set"),
    ],
)
def test_refused_in_the_first_step(make: Any, complaint: str) -> None:
    data = Rows(torch.ones(4, 2), torch.ones(4, 1))
    steps: list[int] = []
    with pytest.raises(ModelError, match=complaint):
        train(make, data.cut(2, 2), prepare=lambda loop: setattr(loop, "after_step", lambda loop: steps.append(1)))
    assert not steps


@pytest.mark.parametrize("name", ["mix", "odd"])
def test_a_late_tensor_that_cannot_be_sent_costs_itself_alone(name: str) -> None:
    module = nn.Linear(2, 1)
    late = {"mix": torch.eye(2).to_sparse(), "odd": torch.empty(2, dtype=torch.bits8)}[name]
    module.register_buffer(name, late)
    module.register_buffer("transient", late, persistent=False)
    module.register_buffer("seen", torch.ones(2))
    told: list[str] = []
    tensors = module_state.sendable(module_state.pack_state(module, told.append), told.append)
    describe(tensors)
    assert len(told) == 1
    assert f"the trained model lacks a tensor: tensor '{name}' cannot be sent" in told[0]
    back = trained_module(nn.Linear(2, 1), {name: tensor.detach().clone() for name, tensor in tensors.items()})
    assert torch.equal(back.weight, module.weight)
    assert back.seen.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("state", [{1, 2}, RuntimeError("mine")])
def test_nothing_else_is_lost_at_the_end(state: Any) -> None:
    """A state that became something else in training costs itself alone."""
    module = Holder(1)
    module.inner.state = state
    told: list[str] = []
    back = trained_module(Holder(5), dict(module_state.pack_state(module, told.append)))
    assert "lacks the extra state of the model's part inner" in told[0]
    assert torch.equal(back.layer.weight, module.layer.weight)
    assert back.inner.state == 5


def test_a_driver_that_does_not_take_it() -> None:
    with pytest.warns(UserWarning, match="lacks extra state: KeyError"):
        back = trained_module(
            Holder(5, takes=lambda state: {}[state]), dict(module_state.pack_state(Holder(1), lambda text: None))
        )
    assert back.inner.state == 5


def test_saved_and_loaded(tmp_path: Path) -> None:
    module = nn.Sequential(Counting(), Fresh())
    module[0](torch.ones(2, 3))
    module[1].steps = 4
    write_weights(module, tmp_path)
    back = read_weights(lambda: nn.Sequential(Counting(), Fresh()), tmp_path, "here")
    assert (back[0].seen, back[1].steps) == (module[0].seen, 4)
    assert torch.equal(back[0].last, module[0].last)
    with pytest.raises(ModelError, match=r"here: the weights are not those of Linear(.|\n)*weight"):
        read_weights(nn.Linear(1, 1), tmp_path, "here")


def test_the_best_epoch_has_its_own() -> None:
    """The first epoch is the best: its factor and its count of steps are those of the end."""
    data = Rows(torch.ones(4, 2), torch.full((4, 1), 2.0))
    stopping = Stopping(patience=2, monitor="loss", mode="max")  # so that later ones are worse
    loops = train(Fresh, data.cut(2, 2), epochs=5, observation=Observation(stopping=stopping))
    steps = [loop.model.module.steps for loop in loops]
    assert loops[0].progress.step == 3
    assert steps == [1, 1]


class Remembering(nn.Module):
    """Its state has the last output, which torch cannot copy: autograd has computed it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.last: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = [self.layer(x)]
        return self.last[0]

    def get_extra_state(self) -> dict[str, Any]:
        return {"last": self.last}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.last = state["last"]


def test_the_best_epoch_has_what_autograd_computed() -> None:
    data = Rows(torch.ones(4, 2), torch.full((4, 1), 2.0))
    stopping = Stopping(patience=1, monitor="loss", mode="max")
    (one,) = train(Remembering, data.cut(4), epochs=1)
    (best,) = train(Remembering, data.cut(4), epochs=5, observation=Observation(stopping=stopping))
    assert torch.equal(best.model.module.last[0], one.model.module.last[0])
    copied = module_state.deep_copy(one.model.module)
    assert torch.equal(copied.last[0], one.model.module.last[0])


def test_a_buffer_that_is_not_in_the_state_dict_comes_back() -> None:
    """Whoever makes the module draws another one."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("mask", torch.tensor(next(draws)), persistent=False)

    draws = iter([1.0, 2.0])
    module = Masked()
    module.layer.register_buffer("seen", torch.ones(3), persistent=False)
    back = arrived(module, Masked)
    assert (back.mask.item(), back.layer.seen.tolist()) == (1.0, [1.0] * 3)
    assert list(back.state_dict()) == ["layer.weight", "layer.bias"]


class Growing(nn.Module):
    """Buffers that change their shape and come late, a tied weight, and frozen ones that are parts of one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.two.weight = self.one.weight
        both = torch.randn(2, 4)
        self.left, self.turned = (nn.Parameter(part, requires_grad=False) for part in (both[:, :2], both[:, :3].t()))
        self.register_buffer("grown", torch.zeros(1))
        self.register_buffer("unset", None)


def test_memory_that_is_shared_and_buffers_that_came_later_are_saved(tmp_path: Path) -> None:
    module = Growing()
    module.grown, module.unset = torch.rand(3), torch.rand(2)
    module.one.register_buffer("late", torch.rand(1))
    write_weights(module, tmp_path)
    back = read_weights(Growing, tmp_path, "here")
    assert {name: tensor.tolist() for name, tensor in back.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in module.state_dict().items()
    }
    assert back.two.weight is back.one.weight
    with pytest.raises(ModelError, match="here: the weights are not those of Linear"):
        read_weights(nn.Linear(2, 2), tmp_path, "here")
