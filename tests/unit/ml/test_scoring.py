"""prediction, rawPrediction and probability: what transform adds, and that Spark's evaluators can work on it."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.linalg import DenseVector, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from sklearn.metrics import log_loss, roc_auc_score

from sparkdl_comm.errors import InputError, ModelError
from sparkdl_comm.ml.model import TorchModel
from sparkdl_comm.ml.scoring import Scoring, activation_of, columns_of, kind_of
from sparkdl_comm.train.diagnosis import shape_of
from tests.nets import Logarithms, Sum, TwoClasses

ROWS = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
#: Noise, so that not all rows are classified well.
LABELS = (ROWS[:, 0] + np.random.default_rng(1).normal(size=60) > ROWS[:, 1]).astype(float)
ALL = ("rawPrediction", "probability", "prediction")


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    rows = [(i, row.tolist(), label) for i, (row, label) in enumerate(zip(ROWS, LABELS.tolist(), strict=True))]
    return spark.createDataFrame(rows, "i int, features array<float>, label double").repartition(3).cache()


def scored(model: TorchModel, df: DataFrame, column: str) -> np.ndarray:
    values = [row[column] for row in model.transform(df).orderBy("i").collect()]
    return np.stack([value.toArray() if isinstance(value, DenseVector) else value for value in values])


def outputs(module: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return module(torch.from_numpy(ROWS)).double()


@pytest.mark.parametrize(
    ("loss", "activation"),
    [
        (torch.nn.CrossEntropyLoss(), "softmax"),
        (F.cross_entropy, "softmax"),
        (functools.partial(F.cross_entropy, label_smoothing=0.1), "softmax"),
        (torch.nn.NLLLoss(), "exp"),
        (torch.nn.BCEWithLogitsLoss(), "sigmoid"),
        (F.binary_cross_entropy, "identity"),
        (torch.nn.MultiMarginLoss(), None),
        (torch.nn.MSELoss(), None),
        (lambda output, target: output.mean(), None),
    ],
)
def test_activation_of_losses(loss: Any, activation: str | None) -> None:
    assert activation_of(loss) == activation


@pytest.mark.parametrize(
    ("classification", "activation", "shape", "kind"),
    [
        (True, "softmax", [10], "classes"),
        (True, None, None, "classes"),
        (True, None, [1], "value"),
        (True, "softmax", [10, 4, 4], "vector"),
        (False, "sigmoid", [1], "binary"),
        (False, "sigmoid", [], "binary"),
        (False, "sigmoid", None, "binary"),
        (False, "sigmoid", [5], "vector"),
        (False, None, [3, 2], "vector"),
        (False, None, None, "value"),
    ],
)
def test_kinds(classification: bool, activation: Any, shape: list[int] | None, kind: str) -> None:
    assert kind_of(classification, activation, shape) == kind


def test_output_of_another_width_is_named() -> None:
    with pytest.raises(ModelError, match=r"3 values per row.*model\.output_shape = \[3\]"):
        Scoring("binary", "sigmoid", ALL)(torch.zeros(4, 3), 4)
    with pytest.raises(ModelError, match=r"one value per row.*model\.output_shape = \[1\]"):
        Scoring("classes", None, ("prediction",))(torch.zeros(4, 1), 4)
    with pytest.raises(ModelError, match="one row per row of input, 4; it returned \\(3, 2\\)"):
        Scoring("classes", None, ("prediction",))(torch.zeros(3, 2), 4)
    with pytest.raises(ModelError, match="activation is 'tanh'; it must be None or one of softmax, exp"):
        columns_of("classes", "tanh")  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [("total", "twice"), None], ids=["dict", "tuple"])
@pytest.mark.slow
def test_several_outputs(df: DataFrame, names: tuple[str, str] | None) -> None:
    class Both(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> Any:
            both = rows.sum(1, keepdim=True), rows * 2
            return dict(zip(names, both, strict=True)) if names else both

    shape = shape_of(Both()(torch.zeros(3, 2)), 3)
    total, twice = names or ("output0", "output1")
    assert shape == {total: [1], twice: [2]}
    model = TorchModel(Both(), True, activation="softmax", output_shape=shape).setPredictBatchSize(7)
    found = model.transform(df).orderBy("i").select("prediction.*")
    assert found.columns == [total, twice]
    np.testing.assert_allclose([row[total] for row in found.collect()], ROWS.sum(1), rtol=1e-6)
    np.testing.assert_allclose([row[twice] for row in found.collect()], ROWS * 2)
    model.output_shape = {"other": [1]}
    with pytest.raises(
        Exception, match=rf"must return \['other'\], as in training; it returned \['{total}', '{twice}'\]"
    ):
        model.transform(df).collect()


def test_classes(df: DataFrame) -> None:
    model = TorchModel(TwoClasses(), True, activation="softmax").setPredictBatchSize(7)
    added = model.transform(df)
    assert added.columns == ["i", "features", "label", *ALL]
    assert [added.schema[name].dataType.typeName() for name in ALL] == ["vectorudt", "vectorudt", "double"]
    assert isinstance(added.schema["probability"].dataType, VectorUDT)
    expected = outputs(model.module)
    np.testing.assert_array_equal(scored(model, df, "rawPrediction"), expected)
    np.testing.assert_allclose(scored(model, df, "probability"), expected.softmax(1), rtol=1e-12)
    np.testing.assert_array_equal(scored(model, df, "prediction"), expected.argmax(1))

    evaluator = MulticlassClassificationEvaluator(metricName="logLoss")
    assert evaluator.evaluate(added) == pytest.approx(log_loss(LABELS, expected.softmax(1)))
    area = roc_auc_score(LABELS, expected[:, 1] - expected[:, 0])
    probability = BinaryClassificationEvaluator(rawPredictionCol="probability")
    assert probability.evaluate(added) == pytest.approx(area)
    assert 0.6 < area < 1, "a comparison of constants would show nothing"


@pytest.mark.slow
def test_logarithms_of_probabilities(df: DataFrame) -> None:
    model = TorchModel(Logarithms(), True, activation="exp")
    expected = outputs(model.module).exp()
    np.testing.assert_allclose(scored(model, df, "probability"), expected, rtol=1e-12)
    np.testing.assert_allclose(expected.sum(1), 1, rtol=1e-6)


@pytest.mark.slow
def test_binary(df: DataFrame) -> None:
    model = TorchModel(Sum(1.5), False, activation="sigmoid")
    z = outputs(model.module)[:, 0]
    np.testing.assert_array_equal(scored(model, df, "rawPrediction"), torch.stack([-z, z], 1))
    p = z.sigmoid()
    np.testing.assert_allclose(scored(model, df, "probability"), torch.stack([1 - p, p], 1), rtol=1e-9)
    np.testing.assert_array_equal(scored(model, df, "prediction"), p > 0.5)
    evaluator = BinaryClassificationEvaluator()
    assert evaluator.evaluate(model.transform(df)) == pytest.approx(roc_auc_score(LABELS, z))


def test_binary_probabilities() -> None:
    p = torch.tensor([[0.25], [0.75]])
    raw, probability, prediction = Scoring("binary", "identity", ALL)(p, 2)
    assert raw.tolist() == probability.tolist() == [[0.75, 0.25], [0.25, 0.75]]
    assert prediction.tolist() == [0, 1]


def test_regression(df: DataFrame) -> None:
    model = TorchModel(Sum(), False)
    assert model.transform(df).columns == ["i", "features", "label", "prediction"]
    error = RegressionEvaluator(metricName="mse").evaluate(model.transform(df))
    assert error == pytest.approx(np.mean((ROWS.sum(1) - LABELS) ** 2), rel=1e-5)


@pytest.mark.slow
def test_columns_can_be_renamed_and_left_out(df: DataFrame) -> None:
    model = TorchModel(TwoClasses(), True, activation="softmax")
    given = ["i", "features", "label"]
    model.setRawPredictionCol("").setProbabilityCol("p")
    assert model.transform(df).columns == [*given, "p", "prediction"]
    assert scored(model, df, "p").shape == (60, 2)
    assert model.setPredictionCol("").setProbabilityCol("").transform(df).columns == given
    with pytest.raises(InputError, match="rawPredictionCol: there already is a column 'label'"):
        model.setRawPredictionCol("label").transform(df)
    with pytest.raises(InputError, match="there already is a column 'same'"):
        model.setRawPredictionCol("same").setProbabilityCol("same").transform(df)


@pytest.mark.slow
def test_stream(df: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    df.coalesce(2).write.parquet(str(tmp_path / "in"))
    model = TorchModel(TwoClasses(), True, activation="softmax")
    stream = spark.readStream.schema(df.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    query = (
        model.transform(stream)
        .writeStream.format("memory")
        .queryName("scored_stream")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert len(query.recentProgress) >= 2, "one micro-batch per file"
    assert sorted(spark.table("scored_stream").collect()) == sorted(model.transform(df).collect())


class Loaded(torch.nn.Module):
    """Notes the process in which it is unpickled."""

    def __init__(self, log: str) -> None:
        super().__init__()
        self.log = log

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        with open(self.log, "a") as log:
            log.write(f"{os.getpid()}\n")

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.full((len(rows),), float(os.getpid()))


@pytest.mark.slow
def test_loaded_once_in_each_python_worker(df: DataFrame, tmp_path: Path) -> None:
    log = tmp_path / "loads"
    log.touch()
    added = TorchModel(Loaded(str(log)), False).transform(df.repartition(12))
    workers = {int(row.prediction) for _ in range(2) for row in added.collect()}
    loads = [int(line) for line in log.read_text().split()]
    assert sorted(loads) == sorted(workers), "24 tasks, and one load per worker"
    assert os.getpid() not in loads
