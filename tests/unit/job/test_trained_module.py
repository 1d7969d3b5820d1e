"""What the driver and the ranks make of the model that they are given."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ModelError, ResultError
from sparkdl_comm.job.trained_module import driver_module, free_parameters, keep_tensors, load_trained
from sparkdl_comm.ml.model import TorchModel, torchscript
from sparkdl_comm.optim.optimizer import Optimization, build_module
from sparkdl_comm.train.spec import TrainSpec
from tests.nets import Sum, Tied, not_a_module


def spec(model: Any) -> TrainSpec:
    return TrainSpec(
        model, torch.nn.MSELoss(), Optimization(torch.optim.SGD), 1, 1, 0, "cpu", "gloo", CommConf.from_mapping({}), 1,
        False, "0" * 16, b"", ("", 0),
    )  # fmt: skip


def trained_module(model: Any, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    module = driver_module(model, seed=0)
    free_parameters(module)
    return load_trained(module, tensors)


def test_trained_module() -> None:
    given = Sum(1.0)
    module = trained_module(given, {"factor": torch.tensor(5.0)})
    assert module is not given
    assert (module.factor.item(), given.factor.item(), module.training) == (5.0, 1.0, False)
    state = torch.random.get_rng_state()
    tied = trained_module(Tied, {"encoder.weight": torch.eye(3), "offset": torch.ones(3)})
    assert torch.equal(torch.random.get_rng_state(), state)
    assert tied.decoder.weight is tied.encoder.weight
    assert torch.equal(tied.decoder.weight, torch.eye(3))


def test_the_drivers_module_holds_no_parameters() -> None:
    """A model of gigabytes must not be on the driver twice when the trained one arrives."""
    module = driver_module(lambda: torch.nn.Linear(1000, 1000), seed=0)
    free_parameters(module)
    assert [parameter.shape for parameter in module.parameters()] == [(1000, 1000), (1000,)]
    assert sum(parameter.untyped_storage().nbytes() for parameter in module.parameters()) < 100


@pytest.mark.parametrize(
    "tensors", [{}, {"factor": torch.zeros(()), "inner.x": torch.zeros(1)}, {"factor": torch.zeros(2)}]
)
def test_trained_module_of_another_model(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ModelError, match="not the driver's"):
        trained_module(Sum, tensors)


def weight_normed() -> torch.nn.Module:
    return torch.nn.utils.weight_norm(torch.nn.Linear(2, 2, bias=False))


def fails_on_the_driver() -> torch.nn.Module:
    raise FileNotFoundError("/data/embeddings, which executors have")


def test_a_factory_that_fails_on_the_driver() -> None:
    """It is called before the ranks start."""
    with pytest.raises(
        ModelError, match=r"the factory raised FileNotFoundError on the driver: /data/embeddings"
    ) as caught:
        driver_module(fails_on_the_driver, seed=0)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_weight_norm(tmp_path: Path) -> None:
    """torch cannot copy its weight, which autograd has computed."""
    with pytest.warns(FutureWarning, match="weight_norm"):
        given = weight_normed()
    given(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(given)
    trained = {"weight_g": torch.full((2, 1), 2.0), "weight_v": torch.eye(2)}
    for model in (given, weight_normed):
        module = trained_module(model, dict(trained))
        assert torch.equal(module(torch.ones(1, 2)), torch.full((1, 2), 2.0))
        copied = TorchModel(module, False).to_torch()
        with torch.no_grad():
            copied.weight_g *= 2
        assert torch.equal(copied(torch.ones(1, 2)), torch.full((1, 2), 4.0))
        assert torch.equal(module(torch.ones(1, 2)), torch.full((1, 2), 2.0))
        torchscript(TorchModel(module, False).to_torch(), (torch.ones(1, 2),), tmp_path / "script")
        assert torch.equal(torch.jit.load(tmp_path / "script")(torch.ones(3, 2)), torch.full((3, 2), 2.0))
    assert given.weight_g.max() != 2.0


class Growing(torch.nn.Module):
    """Buffers change their shape, and appear, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.register_buffer("seen", torch.zeros(0))
        self.register_buffer("total", None)


def test_buffers_that_changed_or_came_late() -> None:
    state = {name: tensor.detach() for name, tensor in Growing().state_dict().items()}
    late = {"seen": torch.ones(3), "total": torch.ones(2), "layer.steps": torch.tensor(7)}
    module = trained_module(Growing, {**state, **late})
    assert (module.seen.tolist(), module.total.tolist(), module.layer.steps.item()) == ([1.0] * 3, [1.0] * 2, 7)
    assert set(module.state_dict()) == {*state, *late}
    del state["seen"]
    with pytest.warns(UserWarning, match="no longer has these buffers, so they keep their initial values: seen"):
        trained_module(Growing, state)


def test_what_fails_after_training_has_the_tensors() -> None:
    tensors = {"factor": torch.tensor(5.0)}
    with (
        pytest.raises(ResultError, match="training ended, and then OSError: no space.*state_dict") as caught,
        keep_tensors(tensors),
    ):
        raise OSError("no space")
    assert caught.value.state_dict == tensors
    with pytest.raises(ModelError, match="not the driver's") as refused, keep_tensors(tensors):
        load_trained(torch.nn.Linear(1, 1), tensors)
    assert refused.value.state_dict == tensors


def test_a_factory_that_makes_no_module() -> None:
    with pytest.raises(ModelError, match="the factory returned int; it must return a torch.nn.Module"):
        build_module(not_a_module)


def test_secret_is_not_shown() -> None:
    assert "secret" not in repr(spec(Sum))
