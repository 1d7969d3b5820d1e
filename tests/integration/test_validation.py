"""Rows that are held out, on three executors."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from torchmetrics.classification import MulticlassAccuracy

from tests.integration.nets import Small, weighted_cross_entropy
from tests.integration.test_training import ROWS, distance, fit, same_bits
from tests.integration.test_training import table as plain_table
from tests.slow import slow

SGD = functools.partial(torch.optim.SGD, lr=0.2)


def table() -> pd.DataFrame:
    data = plain_table()
    data["held"] = np.arange(ROWS) % 3 == 0
    data["w"] = np.random.default_rng(4).random(ROWS)
    return data


@pytest.fixture(scope="module")
def data(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(table(), "features array<float>, label long, held boolean, w double")


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == target).float().mean()


@pytest.mark.parametrize(
    ("strategy", "metrics"),
    [
        ("ps", {"mine": accuracy}),
        slow("gloo", {"mine": accuracy, "theirs": MulticlassAccuracy(10, average="micro")}),
    ],
)
def test_held_out_rows_are_evaluated_and_not_trained_on(data, strategy, metrics):
    model = fit(
        data, epochs=6, strategy=strategy, optimizer=SGD, validationIndicatorCol="held", weightCol="w",
        metrics=metrics,
    )  # fmt: skip
    rows = table()
    features, labels = torch.tensor(np.stack(rows["features"])), torch.tensor(rows["label"].to_numpy())
    weights, held = torch.tensor(rows["w"].to_numpy(np.float32)), torch.tensor(rows["held"].to_numpy())
    torch.manual_seed(5)
    module = Small()
    optimizer = SGD(module.parameters())
    expected = []
    for _ in range(6):
        optimizer.zero_grad()
        losses = torch.nn.functional.cross_entropy(module(features), labels, reduction="none")
        ((losses * weights)[~held].sum() / weights[~held].sum()).backward()
        optimizer.step()
        with torch.no_grad():
            output = module(features[held])
            losses = torch.nn.functional.cross_entropy(output, labels[held], reduction="none")
        loss = (losses * weights[held]).sum() / weights[held].sum()
        expected.append((loss.item(), accuracy(output, labels[held]).item()))
    assert distance(model.module.state_dict(), module.state_dict()) <= 1e-5
    assert [row["val_loss"] for row in model.history] == pytest.approx([loss for loss, _ in expected], rel=1e-5)
    for name in metrics:
        assert [row[name] for row in model.history] == pytest.approx([rate for _, rate in expected])
    assert model.summary["rows"] == (~rows["held"]).sum()


@pytest.mark.parametrize("strategy", ["ps", slow("gloo")])
def test_stopped_early_with_the_best_model_by_validation_loss(data, strategy):
    settings = {"strategy": strategy, "optimizer": SGD, "validationIndicatorCol": "held"}
    model = fit(data, epochs=500, earlyStoppingPatience=4, **settings)
    losses = [row["val_loss"] for row in model.history]
    best = losses.index(min(losses))
    assert best > 0
    assert len(losses) == best + 5 < 500
    assert same_bits(model, fit(data, epochs=best + 1, **settings))


@pytest.mark.slow
def test_a_fraction_depends_on_rows_and_seed_alone(data):
    settings = {"epochs": 2, "validationFraction": 0.3}
    first, other_order = fit(data, **settings), fit(data.repartition(5).sort("w"), **settings)
    assert first.summary["rows"] == other_order.summary["rows"]
    assert distance(first.module.state_dict(), other_order.module.state_dict()) <= 1e-6
    losses = [row["val_loss"] for row in other_order.history]
    assert [row["val_loss"] for row in first.history] == pytest.approx(losses, rel=1e-6)
    assert 0.5 * ROWS < first.summary["rows"] < 0.9 * ROWS
    splits = {fit(data, seed=seed, **settings).summary["rows"] for seed in range(3)}
    assert len(splits) > 1, "another seed chooses others"


@pytest.mark.slow
def test_a_loss_of_ones_own_with_weights(data):
    settings = {"epochs": 3, "validationIndicatorCol": "held", "weightCol": "w"}
    mine, torchs = fit(data, loss=weighted_cross_entropy, **settings), fit(data, **settings)
    assert distance(mine.module.state_dict(), torchs.module.state_dict()) <= 1e-6
    assert mine.history[-1]["val_loss"] == pytest.approx(torchs.history[-1]["val_loss"])
