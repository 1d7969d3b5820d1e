"""What errors advise is tried: each case fails with an error that says what to set, and works when that is done."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from lab.settings import applied
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl_comm import TorchEstimator
from sparkdl_comm.errors import ConfError, InputError, ModelError, PluginError, SlotsError, SparkdlCommError
from tests.integration.nets import Line, Pictures, Small
from tests.integration.test_training import frame
from tests.slow import slow

SGD = functools.partial(torch.optim.SGD, lr=0.1)
CONF = "spark.sparkdl.comm."


def matrix() -> torch.nn.Module:
    """Muon takes nothing else."""
    return torch.nn.Linear(28, 10, bias=False)


@dataclass
class Advice:
    """``wrong``: keywords of the estimator; ``conf``: of the session. ``error`` and ``told``, a regular expression: what
    comes. ``right``: what is set then, or is made of what the message says; ``then``: likewise of the conf. ``rows`` and
    ``fixed``: the DataFrame before and after."""

    name: str
    wrong: dict[str, Any]
    error: type[Exception]
    told: str
    right: Callable[[re.Match[str]], dict[str, Any]] | dict[str, Any] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    then: Callable[[re.Match[str]], dict[str, str]] | None = None
    rows: Callable[[DataFrame], DataFrame] = lambda df: df
    fixed: Callable[[DataFrame], DataFrame] = lambda df: df


def with_null(df: DataFrame) -> DataFrame:
    return df.withColumn("label", F.expr("if(label = 3, null, label)"))


CASES = [
    Advice(
        "an optimizer that wants a closure",
        {"optimizer": torch.optim.LBFGS},
        ModelError,
        r"LBFGS.*Use another optimizer, such as torch\.optim\.(\w+)",
        lambda said: {"optimizer": getattr(torch.optim, said[1])},
    ),
    *(
        Advice(
            f"{made.__name__} in ps",
            {"optimizer": made, "strategy": "ps", "model": matrix},
            ModelError,
            r"Set (ring)",
            lambda said: {"strategy": said[1]},
        )
        for name in ("Adafactor", "Muon")
        if (made := getattr(torch.optim, name, None))  # newer than the oldest torch
    ),
    Advice(
        "an optimizer's arguments",
        {"optimizer": SGD([torch.nn.Parameter(torch.zeros(1))])},
        ModelError,
        r"functools\.partial\(torch\.optim\.Adam, lr=1e-3\)",
        {"optimizer": functools.partial(torch.optim.Adam, lr=1e-3)},
    ),
    Advice(
        "the name of a loss",
        {"loss": "CrossEntropy"},
        ModelError,
        r"did you mean (\w+)\?",
        lambda said: {"loss": said[1]},
    ),
    Advice(
        "a loss that is a sum",
        {"loss": torch.nn.CrossEntropyLoss(reduction="sum")},
        ModelError,
        r"it must be '(mean)' over the rows",
        lambda said: {"loss": torch.nn.CrossEntropyLoss(reduction=said[1])},
    ),
    Advice(
        "a factory with arguments",
        {"model": torch.nn.Linear},
        ModelError,
        r"Give functools\.partial\(model, \.\.\.\)",
        {"model": functools.partial(torch.nn.Linear, 28, 10)},
    ),
    Advice(
        "a device that is not there",
        {"strategy": "nccl"},
        ConfError,
        r"strategy=(gloo)",
        lambda said: {"strategy": said[1]},
    ),
    Advice(
        "metrics without validation rows",
        {"metrics": {"loss again": torch.nn.functional.cross_entropy}},
        ConfError,
        r"set validationIndicatorCol or (validationFraction)",
        lambda said: {said[1]: 0.3},
    ),
    Advice(
        "a scheduler that cannot step so often",
        {
            "lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau,
            "lrSchedulerInterval": "step",
            "earlyStoppingMonitor": "loss",
        },
        ConfError,
        r"(lrSchedulerInterval)='step': ReduceLROnPlateau needs '(epoch)'",
        lambda said: {said[1]: said[2]},
    ),
    Advice(
        "parameters that no group has",
        {"param_groups": lambda module: [{"params": module[0].parameters()}]},
        ModelError,
        r"Put them into a group",
        {"param_groups": lambda module: [{"params": module.parameters()}]},
    ),
    Advice(
        "too many workers",
        {"num_workers": 9},
        SlotsError,
        r"has (\d) slots",
        lambda said: {"num_workers": int(said[1])},
    ),
    Advice(
        "pictures as arrays",
        {"model": Pictures},
        ModelError,
        r"takes \[1, height, width\]: change the layer, or set (inputShapes)",
        lambda said: {said[1]: [[1, 4, 7]]},
    ),
    Advice("nulls", {}, InputError, r"rows have a null", rows=with_null, fixed=lambda df: df.dropna()),
    Advice(
        "an output that is no value",
        {"loss": "MSELoss"},
        ModelError,
        r"Change the model's last layer",
        {"model": Line},
    ),
    Advice(
        "an unknown key",
        {},
        ConfError,
        r"unknown key (\S+); did you mean (\S+)\?",
        conf={f"{CONF}timeOut": "1min"},
        then=lambda said: {said[2]: "1min"},
    ),
    Advice(
        "a NIC that is not there",
        {},
        ConfError,
        r"no such NIC.*there are: .*\b(lo) \(127\.0\.0\.1",
        conf={f"{CONF}nic": "eth77"},
        then=lambda said: {f"{CONF}nic": said[1]},
    ),
    Advice(
        "a driver's name that nobody knows",
        {},
        ConfError,
        r"set (spark\.sparkdl\.comm\.driver\.host); .*\blo \((127\.0\.0\.1)",
        conf={f"{CONF}driver.host": "no-such-host.invalid"},
        then=lambda said: {said[1]: said[2]},
    ),
]


def fit(spark, data: DataFrame, conf: dict[str, str], settings: dict[str, Any]) -> Any:
    given = {"model": Small, "loss": "CrossEntropyLoss", "optimizer": SGD, "num_workers": 3, "strategy": "gloo"}
    with applied(spark, conf, prefix=""):
        return TorchEstimator(batchSize=90, maxIter=1, **{**given, **settings}).fit(data)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name) for case in CASES],
)
@pytest.mark.slow
def test_advice(spark, case):
    data = case.rows(frame(spark))
    with pytest.raises(case.error) as error:
        fit(spark, data, case.conf, case.wrong)
    assert isinstance(error.value, SparkdlCommError)
    said = re.search(case.told, str(error.value), re.DOTALL)
    assert said is not None, f"{error.value}"
    right = case.right(said) if callable(case.right) else case.right
    conf = case.conf if case.then is None else case.then(said)
    assert fit(spark, case.fixed(data), conf, {**case.wrong, **right}).summary["iterations"] == 1


@pytest.mark.parametrize("followed", [slow({"resume": True}), {"checkpointDir": "another"}], ids=["resume", "another"])
def test_advice_about_a_directory_in_use(spark, tmp_path, followed):
    there = {"checkpointDir": str(tmp_path / "one"), "checkpointInterval": 1}
    fit(spark, frame(spark), {}, there)
    with pytest.raises(ConfError, match="Set resume=True to continue from it, or use another directory"):
        fit(spark, frame(spark), {}, there)
    if "checkpointDir" in followed:
        followed = {"checkpointDir": str(tmp_path / followed["checkpointDir"])}
    assert fit(spark, frame(spark), {}, {**there, **followed}).summary["iterations"] == 1


def test_advice_where_the_plugin_is_not_loaded(spark, monkeypatch):
    monkeypatch.setattr("sparkdl_comm.job.session.application_conf", lambda spark: {})
    with pytest.raises(PluginError, match="Without the plugin, set no strategy or one such as ring"):
        fit(spark, frame(spark), {}, {"strategy": "ps"})
    assert fit(spark, frame(spark), {}, {"strategy": "gloo"}).summary["iterations"] == 1


@pytest.mark.slow
def test_advice_about_what_transform_adds(spark):
    model = fit(spark, frame(spark), {}, {})
    with pytest.raises(InputError, match="predictionCol: there already is a column 'label'; choose another or drop it"):
        model.copy().setPredictionCol("label").transform(frame(spark))
    assert model.copy().setPredictionCol("label").transform(frame(spark).drop("label")).count() > 0
