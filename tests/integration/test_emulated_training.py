"""A whole fit of an emulated network: every byte of the profile's parameters travels, and the sums are right."""

import functools

import pytest
import torch
from lab.emulated import EmulatedNetwork
from pyspark.sql import SparkSession

from sparkdl_comm import TorchEstimator
from sparkdl_comm.sim.profile import Profile
from tests.slow import slow

STEPS, WORLD = 2, 3


@pytest.mark.parametrize("strategy", ["ps", slow("gloo")])
def test_emulated_network_trains_like_one_process(spark: SparkSession, strategy: str) -> None:
    rows = [([float(i % 7), float(i % 3)], i % 10) for i in range(30)]
    data = spark.createDataFrame(rows, "features array<float>, label long")
    factory = functools.partial(EmulatedNetwork, "lenet5", scale=0.01, stragglers="C1")
    model = TorchEstimator(
        model=factory,
        loss="CrossEntropyLoss",
        optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        batchSize=30,  # all rows in every step: which rank has which row does not matter
        maxIter=STEPS,
        num_workers=WORLD,
        strategy=strategy,
    ).fit(data)

    alone = EmulatedNetwork("lenet5", scale=0.0)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    features, labels = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    start = {name: tensor.clone() for name, tensor in alone.state_dict().items()}
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(alone(features), labels).backward()
        optimizer.step()
    for name, tensor in model.module.state_dict().items():
        assert not torch.equal(tensor, start[name])
        assert torch.allclose(tensor, alone.state_dict()[name], atol=1e-6), name
    assert model.summary is not None
    parameters = Profile.load("lenet5").parameters
    # gloo's count is per rank and step, to whole bytes
    expected = STEPS * 2 * (WORLD - 1) * 4 * parameters
    assert sum(model.summary["bytes"].values()) == pytest.approx(expected, abs=STEPS * 2 * WORLD)
