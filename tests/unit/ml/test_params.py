"""The Params of estimator and model, which one table declares."""

import inspect

import pytest
import torch
from make_stub import FILE, stub
from pyspark.ml.param import Param

from sparkdl_comm import TorchEstimator
from sparkdl_comm.errors import ConfError
from sparkdl_comm.ml.model import TorchModel
from sparkdl_comm.ml.params import COMPONENTS, OWN, SHARED, Declaration, TorchParams
from sparkdl_comm.ml.persistence import import_name
from sparkdl_comm.optim import LAMB, LARS

DECLARED = [*SHARED, *OWN]


@pytest.mark.parametrize("param", DECLARED, ids=lambda param: param.name)
def test_every_param_has_a_meaning_and_an_example_of_a_value(param: Declaration) -> None:
    assert len(param.doc) > 5
    assert param.default is not None or param.choices or "such as" in param.doc


def test_the_stub_is_of_this_table() -> None:
    assert FILE.read_text() == stub(), "run python/make_stub.py"


@pytest.mark.parametrize("declared", DECLARED, ids=lambda each: each.name)
def test_every_param_has_a_getter_and_a_setter(declared: Declaration) -> None:
    params = TorchModel(torch.nn.Linear(1, 1), False)
    assert isinstance(getattr(TorchParams, declared.name), Param)
    get, change = (getattr(params, f"{verb}{declared.accessor}") for verb in ("get", "set"))
    assert get() == declared.default
    assert inspect.getdoc(get)
    if declared.default is not None:
        assert change(declared.default) is params
        assert params.isSet(declared.name)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("batchSize", 0, "batchSize=0: must be at least 1"),
        ("learningRate", float("inf"), "learningRate=inf: must be more than 0, and finite"),
        ("checkpointSeconds", 0.0, "checkpointSeconds=0.0: must be more than 0"),
        ("precision", "fp8", "precision='fp8': must be fp32, bf16 or fp16"),
        ("earlyStoppingMinDelta", -0.5, "earlyStoppingMinDelta=-0.5: must be at least 0"),
    ],
)
def test_values_that_are_refused(name: str, value: object, message: str) -> None:
    (declared,) = (each for each in DECLARED if each.name == name)
    with pytest.raises(ConfError) as error:
        declared.check(value)
    assert message in str(error.value)


def test_every_keyword_of_the_estimator_is_a_param_or_a_component() -> None:
    keywords = inspect.signature(TorchEstimator.__init__).parameters.values()
    declared = {each.name: each.annotation for each in keywords if each.kind is each.KEYWORD_ONLY}
    assert declared == COMPONENTS


def test_accessors_of_components_have_names() -> None:
    assert TorchEstimator.getModel.__name__ == "getModel"
    assert TorchEstimator(model=3).setLoss("MSELoss").getLoss() == "MSELoss"


def test_saved_estimators_name_optimizers_by_their_public_place() -> None:
    assert [import_name(kind) for kind in (LARS, LAMB)] == ["sparkdl_comm.optim:LARS", "sparkdl_comm.optim:LAMB"]


def test_none_clears_a_param() -> None:
    estimator = TorchEstimator(inputTypes=None, batchSize=8, maxGradNorm=1.0)
    assert not estimator.isSet("inputTypes"), "a value of None could be saved, and not loaded"
    estimator.setParams(maxGradNorm=None, batchSize=None)
    assert (estimator.getMaxGradNorm(), estimator.getBatchSize()) == (None, 32)
