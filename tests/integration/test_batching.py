"""Layers travel in batches: the same bits, whatever the batches are."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch
from lab.settings import applied
from pyspark.sql import DataFrame, SparkSession
from torch.utils.checkpoint import checkpoint

from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.errors import ModelError
from tests.integration.nets import Backwards, Large, Tangled
from tests.slow import crossed

ROWS = 80
POLICIES = ["layerwise", "fixed:30000"]
SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAM = functools.partial(torch.optim.AdamW, lr=0.003)


@pytest.fixture(scope="module")
def data(spark: SparkSession) -> DataFrame:
    random = np.random.default_rng(11)
    features = random.standard_normal((ROWS, 28), np.float32)
    table = pd.DataFrame({"features": list(features), "label": np.abs(features[:, :10]).argmax(1)})
    return spark.createDataFrame(table, "features array<float>, label long").repartition(5).cache()


def fit(
    data: DataFrame,
    batching: str,
    push: str = "",
    wire: str = "fp32",
    iterations: str = "10",
    drift: str = "0.25",
    **settings: object,
) -> TorchModel:
    """20 steps of 16 rows on three executors."""
    chosen = {"model": Tangled, "loss": "CrossEntropyLoss", "optimizer": SGD, "num_workers": 3, "seed": 5}
    keys = {"batching": batching, "pushBatching": push, "wire": wire, "profileIterations": iterations}
    with applied(data.sparkSession, {**keys, "replanDrift": drift}, "spark.sparkdl.comm.ps."):
        model = TorchEstimator(batchSize=16, maxIter=4, strategy="ps", **{**chosen, **settings}).fit(data)
    assert model.summary is not None
    assert model.summary["iterations"] == 20
    return model


def same_bits(one: TorchModel, other: TorchModel) -> bool:
    mine, theirs = one.module.state_dict(), other.module.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture(scope="module")
def whole(data: DataFrame) -> TorchModel:
    return fit(data, "whole")


@pytest.mark.parametrize(("push", "policy"), crossed(["", "whole"], POLICIES, quick=[("", "layerwise")]))
def test_same_bits_as_whole(data, whole, push, policy):
    model = fit(data, policy, push)
    assert same_bits(model, whole)
    assert model.summary["bytes"] == whole.summary["bytes"]
    torch.manual_seed(5)
    started = Tangled().state_dict()
    assert not torch.equal(model.module.state_dict()["sometimes.weight"], started["sometimes.weight"])


@pytest.mark.parametrize(
    "settings",
    [
        {"model": Backwards},
        {"model": Large, "optimizer": ADAM},
        {"wire": "bf16"},
        {"wire": "fp16", "model": Large},
    ],
    ids=str,
)
@pytest.mark.slow
def test_same_bits_whatever_else_is_set(data, settings):
    assert same_bits(fit(data, "layerwise", **settings), fit(data, "whole", **settings))


@pytest.mark.slow
def test_push_alone(data, whole):
    assert same_bits(fit(data, "whole", "layerwise"), whole)


def test_as_the_paper_has_it(data, whole):
    model = fit(data, "paper", iterations="3")
    assert same_bits(model, whole)
    plans = model.summary["batching"]
    assert plans["pull"]["policy"] == "paper"
    assert plans["pull"]["profile"]["in_turn"]
    assert plans["push"]["batches"] == whole.summary["batching"]["push"]["batches"]


@pytest.mark.parametrize("policy", ["ibatch", "optimal", "greedy1", "greedy2", "parts:2"])
@pytest.mark.slow
def test_planned_from_a_profile(data, whole, policy):
    """Plans after 4 steps, looks again after 31, never; the first steps have one batch."""
    model = fit(data, policy, iterations="3")
    assert same_bits(model, whole)
    plans = model.summary["batching"]
    for direction in ("pull", "push"):
        assert plans[direction]["asked"] == policy
        assert plans[direction]["predicted_seconds"] > 0
        assert plans[direction]["optimal_ratio"] >= 1
        tried = plans[direction].get("tried", {})
        assert all(each["seconds"] > 0 and each["predicted_iteration_seconds"] > 0 for each in tried.values())
        assert ("ibatch" in tried) == (policy == "ibatch")
        assert plans[direction]["kept"] == policy or plans[direction]["kept"].startswith(("plan, ", *tried))
    assert plans["pull"]["batches"][0][0] == plans["push"]["batches"][-1][0] == 1


def test_plans_that_change_all_the_time(data, whole):
    """Every tenth step, however little changed: what is under way keeps the batches it began with."""
    assert same_bits(fit(data, "optimal", iterations="1", drift="0"), whole)


class Rounds(torch.nn.Module):
    """Layer that is used twice, each time under re-entrant checkpointing: backward makes its gradient in two rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(28, 28)
        self.twice = torch.nn.Linear(28, 28)
        self.last = torch.nn.Linear(28, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(rows))
        for _ in range(2):
            hidden = torch.tanh(checkpoint(self.twice, hidden, use_reentrant=True))
        return self.last(hidden)


def test_gradients_that_come_in_rounds_keep_one_batch(data):
    model = fit(data, "ibatch", model=Rounds)
    assert same_bits(model, fit(data, "whole", model=Rounds))
    for direction in ("pull", "push"):
        plan = model.summary["batching"][direction]
        assert (plan["kept"], len(plan["batches"])) == ("whole", 1)
        assert "several rounds" in plan["outcome"]
    with pytest.raises(ModelError, match=r"several rounds.*pushBatching=whole"):
        fit(data, "layerwise", model=Rounds)
