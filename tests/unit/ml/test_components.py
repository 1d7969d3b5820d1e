"""What users give as model, loss and optimizer."""

import functools
import threading

import numpy as np
import pytest
import torch

from sparkdl_comm.errors import ModelError
from sparkdl_comm.ml.components import (
    check_model,
    check_picklable,
    label_limits,
    make_loss,
    make_optimizer_factory,
    make_row_loss,
    target_type,
)
from tests.nets import Sum, TwoClasses, make_two_classes


class Locked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_model() -> None:
    module = TwoClasses()
    for model in (module, TwoClasses, make_two_classes):
        assert check_model(model) is model
    for model in (None, 3, "LeNet"):
        with pytest.raises(ModelError, match="model is "):
            check_model(model)


def test_a_module_with_hooks_for_gradients() -> None:
    """torch loses them when it pickles the module."""
    for hook in ("register_hook", "register_post_accumulate_grad_hook"):
        module = TwoClasses()
        name, parameter = next(iter(module.named_parameters()))
        getattr(parameter, hook)(lambda gradient: None)
        with pytest.raises(ModelError, match=f"{name} has a hook for its gradient"):
            check_model(module)


def test_loss() -> None:
    mine = torch.nn.functional.mse_loss
    assert make_loss(mine) is mine
    for loss in ("CrossEntropyLoss", torch.nn.CrossEntropyLoss, torch.nn.CrossEntropyLoss()):
        assert isinstance(make_loss(loss), torch.nn.CrossEntropyLoss)
    with pytest.raises(ModelError, match="did you mean CrossEntropyLoss"):
        make_loss("crossentropy")
    with pytest.raises(ModelError, match="loss is not given"):
        make_loss(None)
    for loss in (torch.nn.MSELoss(reduction="sum"), functools.partial(mine, reduction="sum")):
        with pytest.raises(ModelError, match="reduction='sum'"):
            make_loss(loss)
    assert label_limits(torch.nn.BCEWithLogitsLoss()) == label_limits(torch.nn.BCELoss()) == (0.0, 1.0)
    assert label_limits(torch.nn.MSELoss()) is None


class Tempered(torch.nn.Module):
    """A loss with a temperature to learn."""

    def __init__(self, trained: bool = True) -> None:
        super().__init__()
        self.temperature = torch.nn.Parameter(torch.ones(()), trained)

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(output / self.temperature, target)


def test_a_loss_with_parameters_to_train() -> None:
    for loss in (Tempered, Tempered(), functools.partial(Tempered()), Tempered().forward):
        with pytest.raises(ModelError, match=r"Tempered has parameters to train, temperature, .*self\.scale\.expand"):
            make_loss(loss)
    frozen, teacher = Tempered(False), functools.partial(lambda output, target, of: of(output, target), of=Tempered())
    assert make_loss(frozen) is frozen
    assert make_loss(teacher) is teacher, "whether gradients pass through an argument is known only in training"


def test_optimizer() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    default = make_optimizer_factory(None)(parameters)
    assert isinstance(default, torch.optim.SGD)
    assert default.defaults["lr"] == 0.01
    assert make_optimizer_factory(torch.optim.Adam) is torch.optim.Adam
    for bad in (torch.optim.Adam(parameters), "Adam"):
        with pytest.raises(ModelError, match=r"functools\.partial"):
            make_optimizer_factory(bad)
    for arguments, message in (
        ({"rate": 0.1}, "unexpected keyword argument 'rate'"),
        ({"lr": -1.0}, "Invalid learning"),
    ):
        with pytest.raises(ModelError, match=f"optimizer: SGD .*{message}"):
            make_optimizer_factory(functools.partial(torch.optim.SGD, **arguments))
    if newer := getattr(torch.optim, "Muon", None):  # not an ordinary Optimizer: its step is of matrices
        assert make_optimizer_factory(newer) is newer
    for lbfgs in (torch.optim.LBFGS, functools.partial(torch.optim.LBFGS, lr=0.1)):
        with pytest.raises(ModelError, match=r"LBFGS: its step wants a closure .*No strategy .*torch\.optim\.Adam"):
            make_optimizer_factory(lbfgs)


def test_classification() -> None:
    assert target_type(torch.nn.CrossEntropyLoss(), False, True) == "int64"
    assert target_type(torch.nn.CrossEntropyLoss(), False, False) == "float32", "probabilities"
    assert target_type(torch.nn.functional.cross_entropy, True, True) == "int64"
    assert target_type(torch.nn.functional.nll_loss, False, True) == "int64"
    assert target_type(functools.partial(torch.nn.functional.cross_entropy), False, True) == "int64"
    assert target_type(torch.nn.functional.cross_entropy, False, False) == "float32"
    assert target_type(torch.nn.functional.mse_loss, True, True) == "float32"
    assert target_type(torch.nn.MSELoss(), True, True) == "float32", "an integer column is a value too"
    assert target_type(torch.nn.BCEWithLogitsLoss(), True, False) == "float32"


def test_losses_per_row() -> None:
    mean = torch.nn.MSELoss()
    assert make_row_loss(mean)(torch.ones(3), torch.zeros(3)).shape == (3,)
    assert mean.reduction == "mean"
    assert make_row_loss(torch.nn.functional.mse_loss)(torch.ones(3), torch.zeros(3)).shape == (3,)
    partial = functools.partial(torch.nn.functional.huber_loss, delta=2.0)
    assert make_row_loss(partial)(torch.ones(3), torch.zeros(3)).tolist() == [0.5] * 3

    def own(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output - target

    assert make_row_loss(own) is own


def test_ships() -> None:
    check_picklable(model=TwoClasses(), loss=lambda x, y: (x - y).mean(), optimizer=functools.partial(Sum, factor=1.0))
    check_picklable(args=(np.zeros((1000, 100)), np.zeros((1000, 100)).T))


def test_what_does_not_ship_is_named() -> None:
    inner = Locked()
    lock = inner.lock

    def factory() -> torch.nn.Module:
        with lock:
            return TwoClasses()

    for model, name in (
        (torch.nn.Sequential(torch.nn.ReLU(), inner), "model.1.lock"),
        (factory, "model.lock"),
        (functools.partial(Sum, factor=lock), "model.factor"),
    ):
        with pytest.raises(ModelError, match=rf"{name} \(of type _thread\.lock\) cannot be shipped") as error:
            check_picklable(loss="x", model=model)
        assert isinstance(error.value.__cause__, TypeError)


def test_shipping_check_does_not_copy_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: torch.Tensor, protocol: int) -> None:
        raise AssertionError("pickled a tensor")

    monkeypatch.setattr(torch.Tensor, "__reduce_ex__", refuse)
    check_picklable(model=TwoClasses())
