"""TorchModel.transform: which columns it takes, what it predicts, what it leaves alone."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from pyspark.errors import PythonException
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

from sparkdl_comm.errors import ConfError, InputError
from sparkdl_comm.ml.components import check_model
from sparkdl_comm.ml.model import TorchModel
from tests.nets import Double, Sum, TwoClasses
from tests.slow import slow

ROWS = [([0.0, 1.0], 0.0), ([2.0, 1.0], 1.0), ([3.0, 5.0], 0.0), ([1.0, 0.0], 1.0), ([-1.0, -2.0], 1.0)]


def failure(scored: DataFrame) -> str:
    """What Spark says of it. Where Python raises while the JVM still writes rows to it, Spark may say no more than that the
    socket is closed."""
    said = "Socket is closed"
    for _ in range(5):
        if "Socket is closed" in said:
            with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is, its text is looked at
                scored.collect()
            said = str(raised.value)
    return said


@pytest.fixture
def arrays(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(row, label) for row, label in ROWS], "features array<double>, label double")


@pytest.fixture
def classifier() -> TorchModel:
    return TorchModel(TwoClasses(), classification=True)


@pytest.mark.parametrize("kind", ["array<double>", *map(slow, ["array<float>", "array<int>", "array<decimal(4,1)>"])])
def test_arrays(arrays: DataFrame, classifier: TorchModel, kind: str) -> None:
    df = arrays.withColumn("features", F.col("features").cast(kind))
    scored = classifier.transform(df)
    assert scored.columns == ["features", "label", "rawPrediction", "prediction"]
    assert scored.schema["features"].dataType.simpleString() == kind
    rows = scored.collect()
    assert [row.prediction for row in rows] == [row.label for row in rows]


def test_vectors_and_other_columns_come_through(spark: SparkSession, classifier: TorchModel) -> None:
    sparse = Vectors.sparse(2, [0], [1.0])
    rows = [(Vectors.dense(row), sparse, {"a": [1, None]}, None, label) for row, label in ROWS]
    schema = spark.createDataFrame([], "m map<string,array<int>>, nothing string, label double").schema
    vectors = [StructField("v", VectorUDT()), StructField("other", VectorUDT())]
    df = spark.createDataFrame(rows, StructType([*vectors, *schema.fields]))
    df = df.withColumns({"odd `name`.x": F.lit("text"), "when": F.current_timestamp(), "raw": F.lit(b"\x00\xff")})
    df = df.select("*", F.lit(1).alias("twice"), F.lit(2).alias("twice"))
    scored = classifier.setFeaturesCol("v").setPredictionCol("p").setRawPredictionCol("").transform(df)
    assert scored.columns == [*df.columns, "p"]
    assert [field.dataType for field in scored.schema.fields[:-1]] == [field.dataType for field in df.schema.fields]
    for row in scored.drop("when").collect():
        assert row.p == row.label
        assert row.other == sparse
        assert (row.m, row.nothing, row["odd `name`.x"]) == ({"a": [1, None]}, None, "text")
        assert (row.raw, row[-3:-1]) == (b"\x00\xff", (1, 2))


def test_column_metadata_survives(arrays: DataFrame, classifier: TorchModel) -> None:
    df = arrays.withMetadata("label", {"ml_attr": {"name": "label"}})
    assert classifier.transform(df).schema["label"].metadata == {"ml_attr": {"name": "label"}}


def test_scalar_feature_and_value(spark: SparkSession) -> None:
    model = TorchModel(Sum(3.0), classification=False)
    scored = model.setFeaturesCol("id").setPredictBatchSize(7).transform(spark.range(100, numPartitions=3))
    assert [row.prediction for row in scored.orderBy("id").collect()] == [3.0 * i for i in range(100)]


def test_vector_prediction(arrays: DataFrame) -> None:
    model = TorchModel(Double(), classification=False, output_shape=[2])
    scored = model.transform(arrays)
    assert scored.schema["prediction"].dataType == ArrayType(FloatType())
    assert [row.prediction for row in scored.collect()] == [[2 * value for value in row] for row, _ in ROWS]
    assert re.search(
        r"2 values per row.*model\.output_shape = \[2\]",
        failure(TorchModel(Double(), classification=False).transform(arrays)),
    )


@pytest.mark.slow
def test_empty_partitions_and_frames(arrays: DataFrame, classifier: TorchModel) -> None:
    assert classifier.transform(arrays.repartition(9)).count() == len(ROWS)
    assert classifier.transform(arrays.filter("label > 5")).collect() == []


def test_rows_per_forward_pass(spark: SparkSession) -> None:
    class Counts(torch.nn.Module):  # local: shipped by value
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            assert torch.is_inference_mode_enabled()
            assert not self.training
            return torch.full((len(rows),), float(len(rows)))

    model = TorchModel(Counts(), classification=False).setFeaturesCol("id").setPredictBatchSize(4)
    sizes = [row.prediction for row in model.transform(spark.range(10, numPartitions=1)).collect()]
    assert sizes == [4.0] * 8 + [2.0] * 2


@pytest.mark.parametrize("kind", ["array", slow("vector")])
def test_features_of_another_width_are_named(spark: SparkSession, classifier: TorchModel, kind: str) -> None:
    df = spark.createDataFrame([([0.0, 1.0, 2.0], 0.0)], "features array<double>, label double")
    df = df if kind == "array" else df.withColumn("features", array_to_vector("features"))
    with pytest.raises(
        PythonException,
        match=r"InputError: a row of featuresCol 'features' is \[3\], and the model's first layer, .*in_features=2",
    ) as error:
        classifier.transform(df).collect()
    assert "mat1 and mat2" not in str(error.value)


@pytest.mark.parametrize("kind", ["array<float>", slow("array<decimal(4,1)>"), slow("vector")])
def test_nulls_are_counted(spark: SparkSession, classifier: TorchModel, kind: str) -> None:
    df = spark.createDataFrame([([1.0, 2.0],), (None,), (None,)], "features array<double>").coalesce(1)
    if kind == "vector":
        df = df.select(F.when(F.col("features").isNotNull(), array_to_vector("features")).alias("features"))
    else:
        df = df.select(F.col("features").cast(kind))
    assert re.search("InputError: 2 of 3 rows of a batch have null features", failure(classifier.transform(df)))


@pytest.mark.slow
def test_null_elements_and_ragged_rows(spark: SparkSession, classifier: TorchModel) -> None:
    for rows, message in (([[1.0, None], [1.0, 2.0]], "1 of 2 rows"), ([[1.0], [1.0, 2.0]], "different lengths")):
        df = spark.createDataFrame([(row,) for row in rows], "features array<double>").coalesce(1)
        assert re.search(f"InputError: .*{message}", failure(classifier.transform(df)))


@pytest.mark.parametrize("kind", ["array<float>", "array<double>", "array<int>", "array<array<float>>"])
@pytest.mark.slow
def test_null_elements_are_told_from_nan(spark: SparkSession, kind: str) -> None:
    """Also beside the number that Spark looks for first."""
    model = TorchModel(torch.nn.Flatten(), classification=False, output_shape=[2])
    rows = [[1.0, 2.0], [-77.0, 3.0], [4.0, -77.0]]
    if kind != "array<int>":
        rows.append([float("nan"), -77.0])
    df = spark.createDataFrame([(row,) for row in rows], "features array<double>").coalesce(1)
    bad = [[None, 1.0], [-77.0, None], [None, -77.0], None]
    more = spark.createDataFrame([(row,) for row in bad], "features array<double>")
    column = F.array("features") if "array<array" in kind else F.col("features")
    scored = model.transform(df.select(column.cast(kind).alias("features"))).collect()
    assert np.allclose([row.prediction for row in scored], rows, equal_nan=True)
    every = df.union(more).coalesce(1).select(column.cast(kind).alias("features"))
    assert re.search(
        f"InputError: 4 of {len(rows) + 4} rows of a batch have null features", failure(model.transform(every))
    )


@pytest.mark.parametrize("kind", ["double", "long"])
@pytest.mark.slow
def test_null_numbers_are_told_from_nan(spark: SparkSession, kind: str) -> None:
    model = TorchModel(Sum(0.0), classification=False)
    df = spark.createDataFrame([(1.0,), (float("nan") if kind == "double" else 2.0,)], "features double").coalesce(1)
    df = df.select(F.col("features").cast(kind))
    assert np.isnan([row.prediction for row in model.transform(df).collect()]).tolist() == [False, kind == "double"]
    more = df.union(df.select(F.lit(None).cast(kind))).coalesce(1)
    assert re.search("InputError: 2 of 4 rows of a batch have null features", failure(model.transform(more)))


@pytest.fixture
def texts(arrays: DataFrame, spark: SparkSession, tmp_path: Path) -> DataFrame:
    text = arrays.withColumn("text", F.lit("long")).withColumn("v", array_to_vector("features"))
    text.coalesce(1).write.parquet(str(tmp_path / "texts"))
    return spark.read.parquet(str(tmp_path / "texts"))


def plan_of(df: DataFrame) -> str:
    return df._jdf.queryExecution().executedPlan().toString()


def read_by(df: DataFrame) -> set[str]:
    """The columns that are read from files."""
    return set(re.findall(r"(\w+):\w", plan_of(df).split("ReadSchema: struct<")[1].replace("element:", "")))


@pytest.mark.parametrize("features", ["features", slow("v")])
def test_only_what_is_needed_is_read(texts: DataFrame, classifier: TorchModel, features: str) -> None:
    scored = classifier.setFeaturesCol(features).transform(texts)
    parts = {"v", "type", "size", "indices", "values"} if features == "v" else {"features"}
    assert read_by(scored.select("prediction")) == parts
    assert read_by(scored.select("prediction", "text")) == {*parts, "text"}
    chosen = scored.where("label > 0.5 and prediction > 0.5")
    assert "GreaterThan(label,0.5)" in plan_of(chosen)
    assert "text" not in read_by(chosen.select("prediction"))
    assert plan_of(chosen).count("ArrowEvalPython") == 1, "the model is called once"
    assert [row.label for row in chosen.collect()] == [1.0] * 3
    assert [(row.text, row.prediction) for row in scored.orderBy("label").collect()] == [
        ("long", label) for label in sorted(label for _, label in ROWS)
    ]


def test_refused_before_anything_runs(arrays: DataFrame, classifier: TorchModel) -> None:
    with pytest.raises(InputError, match=r"featuresCol: there is no column 'x'; the columns are features, label"):
        classifier.copy().setFeaturesCol("x").transform(arrays)
    with pytest.raises(InputError, match=r"column 'features' is string; accepted are numbers"):
        classifier.transform(arrays.withColumn("features", F.lit("x")))
    with pytest.raises(InputError, match="predictionCol: there already is a column 'label'"):
        classifier.copy().setPredictionCol("label").transform(arrays)
    with pytest.raises(ConfError, match="predictBatchSize=0"):
        classifier.copy().setPredictBatchSize(0).transform(arrays)


@pytest.mark.slow
def test_evaluator(arrays: DataFrame, classifier: TorchModel) -> None:
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    assert evaluator.evaluate(classifier.transform(arrays)) == 1.0


def test_copy_shares_the_module(classifier: TorchModel) -> None:
    classifier.summary = {"world": 2}
    other = classifier.copy({classifier.batchSize: 5})
    assert other.module is classifier.module
    assert (other.uid, other.summary, other.getBatchSize()) == (classifier.uid, {"world": 2}, 5)
    assert classifier.getBatchSize() == 32


def test_same_as_torch(spark: SparkSession) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Tanh(), torch.nn.Linear(20, 5))
    values = np.random.default_rng(0).normal(size=(500, 30)).astype(np.float32)
    df = spark.createDataFrame([(i, row.tolist()) for i, row in enumerate(values)], "i int, features array<float>")
    scored = TorchModel(module, classification=True).transform(df.repartition(4)).orderBy("i")
    with torch.inference_mode():
        expected = module.eval()(torch.from_numpy(values)).argmax(1)
    assert [int(row.prediction) for row in scored.collect()] == expected.tolist()


def test_history_and_module_of_ones_own(classifier: TorchModel) -> None:
    assert classifier.history == []
    classifier.summary = {"history": [{"epoch": 1, "loss": 0.5}]}
    assert classifier.history == [{"epoch": 1, "loss": 0.5}]
    module = classifier.to_torch()
    with torch.no_grad():
        module.linear.weight.zero_()
    assert not module.training
    assert classifier.module.training, "left as it was"
    assert classifier.module.linear.weight.any()


def test_model_to_train_further(classifier: TorchModel) -> None:
    assert check_model(classifier) is classifier.module
