"""Modules that pickle refuses travel as their factory and their state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pyspark import cloudpickle
from torch.nn.utils import parametrizations

from sparkdl_comm.errors import ModelError
from sparkdl_comm.job.broadcasts import broadcast_module
from sparkdl_comm.job.shipping import pickle_error, pickle_module
from sparkdl_comm.ml.components import check_model, check_picklable
from sparkdl_comm.ml.model import TorchModel
from tests.unit.job.test_module_broadcast import session  # noqa: F401 - a fixture


def parametrized() -> torch.nn.Module:
    return torch.nn.Sequential(parametrizations.weight_norm(torch.nn.Linear(3, 2)), torch.nn.BatchNorm1d(2))


def scripted() -> torch.nn.Module:
    return torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)))


@pytest.fixture(params=[parametrized, scripted])
def trained(request: pytest.FixtureRequest) -> tuple[torch.nn.Module, Any]:
    module = request.param()
    module(torch.randn(5, 3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    return module.eval(), request.param


def test_factory_and_state_arrive(trained: tuple[torch.nn.Module, Any]) -> None:
    module, factory = trained
    assert pickle_error(module) is not None
    arrived = cloudpickle.loads(pickle_module(module, factory))
    rows = torch.randn(4, 3)
    assert torch.equal(arrived(rows), module(rows))
    assert not arrived.training


def test_over_spark_connect(trained: tuple[torch.nn.Module, Any], session: Any, monkeypatch: Any) -> None:  # noqa: F811
    monkeypatch.setattr("sparkdl_comm.job.broadcasts.is_classic", lambda spark: False)
    module, factory = trained
    shipped = cloudpickle.loads(cloudpickle.dumps(broadcast_module(session, module, factory)))
    rows = torch.randn(4, 3)
    assert torch.equal(shipped.value(rows), module(rows))


def test_trained_further(trained: tuple[torch.nn.Module, Any]) -> None:
    """A TorchModel of such a module is what another fit may begin with."""
    module, factory = trained
    for parameter in module[0].parameters():
        parameter.requires_grad_(False)
    given = check_model(TorchModel(module, False, factory=factory))
    check_picklable(model=given)
    assert not isinstance(given, torch.nn.Module)
    arrived = cloudpickle.loads(cloudpickle.dumps(given))()
    assert arrived.state_dict().keys() == module.state_dict().keys()
    for name, tensor in module.state_dict().items():
        assert torch.equal(arrived.state_dict()[name], tensor)
    assert [p.requires_grad for p in arrived.parameters()] == [p.requires_grad for p in module.parameters()]


def test_without_a_factory() -> None:
    with pytest.raises(
        ModelError, match=r"the model \(RecursiveScriptModule\) cannot be shipped.*Train it from a function"
    ):
        pickle_module(scripted(), None)


def test_what_can_be_pickled_needs_no_factory() -> None:
    module = torch.nn.Linear(3, 2)
    arrived = cloudpickle.loads(pickle_module(module, None))
    assert torch.equal(arrived.weight, module.weight)
