"""What the driver and the ranks make of the model that they are given."""

from typing import Any

import pytest
import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ModelError
from sparkdl_comm.job.trained import trained_module
from sparkdl_comm.optim.optimization import Optimization
from sparkdl_comm.train.spec import TrainSpec

from ..nets import Sum, Tied, not_a_module


def spec(model: Any) -> TrainSpec:
    return TrainSpec(
        model, torch.nn.MSELoss(), Optimization(torch.optim.SGD), 1, 1, 0, "cpu", "gloo", CommConf.from_mapping({}), 1,
        False, "0" * 16, b"", ("", 0),
    )  # fmt: skip


def test_trained_module() -> None:
    given = Sum(1.0)
    module = trained_module(spec(given), {"factor": torch.tensor(5.0)})
    assert module is not given
    assert (module.factor.item(), given.factor.item(), module.training) == (5.0, 1.0, False)
    state = torch.random.get_rng_state()
    tied = trained_module(spec(Tied), {"encoder.weight": torch.eye(3), "offset": torch.ones(3)})
    assert torch.equal(torch.random.get_rng_state(), state)
    assert tied.decoder.weight is tied.encoder.weight
    assert torch.equal(tied.decoder.weight, torch.eye(3))


@pytest.mark.parametrize("tensors", [{}, {"factor": torch.zeros(()), "x": torch.zeros(1)}, {"factor": torch.zeros(2)}])
def test_trained_module_of_another_model(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ModelError, match="not the driver's"):
        trained_module(spec(Sum), tensors)


def test_a_factory_that_makes_no_module() -> None:
    with pytest.raises(ModelError, match="the factory returned int; it must return a torch.nn.Module"):
        spec(not_a_module).build_model()


def test_secret_is_not_shown() -> None:
    assert "secret" not in repr(spec(Sum))
