"""Pipelines with a TorchEstimator in them."""

import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import functions as F

from sparkdl_comm import TorchEstimator
from tests.integration.nets import Small
from tests.integration.test_training import frame


@pytest.mark.slow
def test_pipeline_with_an_assembler(spark, tmp_path):
    columns = [f"x{index}" for index in range(28)]
    data = frame(spark).select(*(F.col("features")[index].alias(name) for index, name in enumerate(columns)), "label")
    stages = [
        VectorAssembler(inputCols=columns, outputCol="features"),
        TorchEstimator(model=Small, loss="CrossEntropyLoss", optimizer=torch.optim.Adam, batchSize=90, num_workers=3),
    ]
    model = Pipeline(stages=stages).fit(data)
    scored = [row.probability for row in model.transform(data).orderBy(*columns).collect()]
    assert len(scored[0]) == 10
    assert sum(scored[0]) == pytest.approx(1)
    model.save(str(tmp_path / "pipeline"))
    again = PipelineModel.load(str(tmp_path / "pipeline")).transform(data).orderBy(*columns).collect()
    assert [row.probability for row in again] == scored


def test_a_pipeline_that_was_saved_trains_the_same(spark, tmp_path):
    data = frame(spark, 180).select(F.col("features").alias("x"), "label")
    estimator = TorchEstimator(
        model=Small, loss="CrossEntropyLoss", batchSize=90, num_workers=3, featuresCol="x", seed=5
    )
    Pipeline(stages=[estimator]).save(str(tmp_path / "pipeline"))
    (one,) = Pipeline(stages=[estimator]).fit(data).stages
    (other,) = Pipeline.load(str(tmp_path / "pipeline")).fit(data).stages
    for name, tensor in one.module.state_dict().items():
        assert torch.equal(tensor, other.module.state_dict()[name])
