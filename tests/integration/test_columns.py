"""What models read: fits on three executors from all kinds of columns."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.errors import InputError
from tests.integration.nets import Line, Pictures, Recommender, Small, TwoHeads, weighted_mse
from tests.integration.test_training import distance, same_bits

ROWS = 60
SGD = functools.partial(torch.optim.SGD, lr=0.05)


def table() -> pd.DataFrame:
    random = np.random.default_rng(3)
    features = random.standard_normal((ROWS, 28), np.float32)
    return pd.DataFrame(
        {
            "features": list(features),
            "label": np.abs(features[:, :10]).argmax(1),
            "flags": list((features[:, :10] > 0).astype(int)),
            "value": features[:, 0].astype(float),
            "user": random.integers(0, 7, ROWS),
            "item": random.integers(0, 9, ROWS),
            "w": random.random(ROWS),
        }
    )


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    schema = "features array<float>, label long, flags array<int>, value double, user long, item long, w double"
    return spark.createDataFrame(table(), schema)


def fit(data: DataFrame, **settings: object) -> TorchModel:
    chosen = {"model": Small, "loss": "CrossEntropyLoss", "optimizer": SGD, "num_workers": 3, "seed": 5}
    return TorchEstimator(**{"batchSize": ROWS, "maxIter": 5, **chosen, **settings}).fit(data)


def reference(net: type[torch.nn.Module], loss: object, *columns: object) -> dict[str, torch.Tensor]:
    """The same fit, in one process."""
    torch.manual_seed(5)
    module = net()
    optimizer = SGD(module.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        loss(module).backward()
        optimizer.step()
    return module.state_dict()


def tensor(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(np.stack(table()[name]), dtype=dtype)


@pytest.mark.slow
def test_dense_and_sparse_vectors_are_arrays(spark: SparkSession, frame: DataFrame) -> None:
    """Rows go to ranks by what they store: dense ones as arrays, sparse ones in another way."""
    dense = frame.withColumn("features", array_to_vector("features"))
    arrays = fit(frame)
    assert same_bits(fit(dense), arrays)
    sparse = [
        (Vectors.sparse(28, range(28), row.tolist()), int(y))
        for row, y in table()[["features", "label"]].itertuples(index=False)
    ]
    pairs = fit(spark.createDataFrame(sparse, ["features", "label"]))
    assert distance(pairs.module.state_dict(), arrays.module.state_dict()) < 1e-5


def test_shaped_and_nested(frame: DataFrame) -> None:
    shaped = fit(frame, model=Pictures, inputShapes=[1, 4, 7])
    nested = F.expr("transform(sequence(0, 3), i -> slice(features, i * 7 + 1, 7))")
    expected = reference(
        Pictures,
        lambda module: torch.nn.functional.cross_entropy(
            module(tensor("features").reshape(-1, 1, 4, 7)), tensor("label", torch.int64)
        ),
    )
    assert distance(shaped.module.state_dict(), expected) < 1e-5
    cube = frame.withColumn("features", F.array(nested))
    model = fit(cube, model=Pictures)
    assert distance(model.module.state_dict(), expected) < 1e-5
    predicted = shaped.transform(frame).toPandas()["prediction"]
    assert len(set(predicted)) > 1
    assert list(model.transform(cube).toPandas()["prediction"]) == list(predicted)


@pytest.mark.slow
def test_two_inputs_of_integers(frame: DataFrame) -> None:
    model = fit(frame, model=Recommender, loss="MSELoss", featuresCol=["user", "item"], labelCol="value")

    def loss(module: torch.nn.Module) -> torch.Tensor:
        return torch.nn.functional.mse_loss(
            module(tensor("user", torch.int64), tensor("item", torch.int64)), tensor("value")
        )

    assert distance(model.module.state_dict(), reference(Recommender, loss)) < 1e-5
    predicted = model.transform(frame).toPandas()
    with torch.inference_mode():
        users, items = (torch.tensor(predicted[name].to_numpy()) for name in ("user", "item"))
        expected = model.module(users, items)
    assert np.allclose(predicted["prediction"], expected, atol=1e-5)


@pytest.mark.slow
def test_several_labels_and_many_at_once(frame: DataFrame) -> None:
    flags = fit(frame, loss="BCEWithLogitsLoss", labelCol="flags")

    def loss(module: torch.nn.Module) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(module(tensor("features")), tensor("flags"))

    assert distance(flags.module.state_dict(), reference(Small, loss)) < 1e-5
    vectors = frame.withColumn("flags", array_to_vector(F.col("flags").cast("array<double>")))
    same = fit(vectors, loss="BCEWithLogitsLoss", labelCol="flags")
    assert distance(same.module.state_dict(), flags.module.state_dict()) < 1e-5

    def both(output: tuple[torch.Tensor, torch.Tensor], target: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert (target[0].dtype, target[1].dtype) == (torch.int64, torch.float32)
        return torch.nn.functional.cross_entropy(output[0], target[0]) + torch.nn.functional.mse_loss(
            output[1], target[1]
        )

    two = fit(frame, model=TwoHeads, loss=both, labelCols=["label", "value"])
    expected = reference(
        TwoHeads, lambda module: both(module(tensor("features")), (tensor("label", torch.int64), tensor("value")))
    )
    assert distance(two.module.state_dict(), expected) < 1e-5
    assert two.output_shape == {"output0": [10], "output1": []}
    prediction = two.transform(frame).schema["prediction"].dataType.simpleString()
    assert prediction == "struct<output0:array<float>,output1:double>"


@pytest.mark.parametrize("loss", ["MSELoss", weighted_mse])
@pytest.mark.slow
def test_weights(frame: DataFrame, loss: object) -> None:
    uneven = frame.repartition(5)
    model = fit(uneven, model=Line, loss=loss, labelCol="value", weightCol="w")
    weights = tensor("w", torch.float64)
    weights = (weights / weights.mean()).float()

    def weighted(module: torch.nn.Module) -> torch.Tensor:
        return (weights * (module(tensor("features")).squeeze(1) - tensor("value")) ** 2).mean()

    assert distance(model.module.state_dict(), reference(Line, weighted)) < 1e-5
    assert (
        distance(
            fit(frame, model=Line, loss="MSELoss", labelCol="value").module.state_dict(), reference(Line, weighted)
        )
        > 1e-3
    )


def test_bad_rows_are_counted_over_all_executors(frame: DataFrame) -> None:
    bad = frame.withColumn("features", F.expr("if(user = 3, array(cast('NaN' as float)), features)"))
    count = int((table()["user"] == 3).sum())
    with pytest.raises(
        InputError, match=f"{count} of {ROWS} rows have a NaN or infinite value in featuresCol 'features'.*1, 28"
    ):
        fit(bad)
    with pytest.raises(InputError, match=f"{ROWS} of {ROWS} rows have 28 values .*inputShapes has"):
        fit(frame, inputShapes=[3, 9])
