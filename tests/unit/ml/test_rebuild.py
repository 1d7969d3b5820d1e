"""Recipes: JSON and tensors, from which another process makes the same values by importing."""

import functools
import json
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparkdl_comm.errors import PersistenceError
from sparkdl_comm.ml.persistence import blueprint_of, import_name, rebuild
from tests.nets import TwoClasses, make_two_classes


def again(value: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}
    return rebuild(json.loads(json.dumps(blueprint_of(value, tensors, "it"))), tensors)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 0.25, "CrossEntropyLoss", float("inf")),
        *([1, [2.5]], (1, ("a",)), {"list": [1], "import": "x"}),
        *(TwoClasses, make_two_classes, torch.optim.AdamW, F.cross_entropy),
        {"error": F.l1_loss, "own": make_two_classes},
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", str(value)),
)
def test_round_trip(value: Any) -> None:
    made = again(value)
    assert made == value
    assert type(made) is type(value)


def test_partials_nest() -> None:
    made = again(functools.partial(nn.Sequential, nn.ReLU, layer=functools.partial(nn.Linear, 3, bias=False)))
    assert (made.func, made.args) == (nn.Sequential, (nn.ReLU,))
    layer = made.keywords["layer"]
    assert (layer.func, layer.args, layer.keywords) == (nn.Linear, (3,), {"bias": False})


def test_tensors_stay_tensors() -> None:
    weight = torch.tensor([0.5, 2.0], requires_grad=True)
    made = again(functools.partial(F.cross_entropy, weight=weight))
    assert torch.equal(made.keywords["weight"], weight)
    assert not made.keywords["weight"].requires_grad


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(torch.tensor([1.0, 3.0]), label_smoothing=0.1, ignore_index=1),
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 4.0])),
        nn.HuberLoss(delta=0.3),
        nn.MultiMarginLoss(p=2, margin=0.5),
        nn.NLLLoss(),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_losses_of_torch(loss: nn.Module) -> None:
    made = again(loss)
    assert type(made) is type(loss)
    torch.manual_seed(0)
    output = torch.randn(5, 2)
    classes = isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss))
    target = torch.randint(2, (5,)) if classes else torch.rand(5, 2)
    assert torch.equal(made(output, target), loss(output, target))


def test_what_can_be_imported() -> None:
    def local() -> nn.Module:
        return TwoClasses()

    assert import_name(TwoClasses) == "tests.nets:TwoClasses"
    assert import_name(make_two_classes) == "tests.nets:make_two_classes"
    for value in (local, lambda: TwoClasses(), TwoClasses(), TwoClasses().forward):
        assert import_name(value) is None
    local.__module__, local.__qualname__ = "__main__", "local"
    assert import_name(local) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: 3, r"it \(function tests\.unit\.ml\.test_rebuild:<lambda>\)"),
        (TwoClasses(), r"it \(instance of tests\.nets:TwoClasses\)"),
        (functools.partial(nn.Linear, dtype=torch.float64), r"it\.keywords\['dtype'\] \(instance of torch:dtype\)"),
        ({"a": [1, {2: 3}]}, r"it\['a'\]\[1\] \(instance of builtins:dict\)"),
        (functools.partial(lambda width: width, 3), r"it\.func \(function"),
    ],
    ids=["lambda", "module", "dtype", "keys", "partial"],
)
def test_what_cannot_be_rebuilt_is_named(value: Any, message: str) -> None:
    with pytest.raises(PersistenceError, match=message):
        blueprint_of(value, {}, "it")


@pytest.mark.parametrize(
    "recipe",
    [{}, {"import": "nowhere_at_all:f"}, {"import": "torch:Gone"}, {"import": "torch"}, {"tensor": "0"}, {"list": 3}],
    ids=str,
)
def test_what_is_no_recipe(recipe: Any) -> None:
    with pytest.raises(PersistenceError, match="cannot rebuild"):
        rebuild(recipe, {})
