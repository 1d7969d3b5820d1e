"""CrossValidator and TrainValidationSplit, with more fits at a time than the cluster has slots for; Pipelines."""

import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit
from pyspark.sql import functions as F

from sparkdl_comm import TorchEstimator, TorchModel
from tests.integration.nets import Small
from tests.integration.test_training import OPTIMIZERS, frame


@pytest.mark.parametrize("kind", [CrossValidator, TrainValidationSplit])
def test_the_better_of_two_is_found(spark, kind):
    """Each fit needs all three slots, and two are started at a time."""
    data = frame(spark).cache()
    estimator = TorchEstimator(
        model=Small, loss="CrossEntropyLoss", optimizer=OPTIMIZERS["sgd"], num_workers=3, batchSize=90
    )
    grid = ParamGridBuilder().addGrid(estimator.maxIter, [1, 40]).build()
    ways = {"numFolds": 2} if kind is CrossValidator else {"trainRatio": 0.7}
    tuned = kind(
        estimator=estimator,
        estimatorParamMaps=grid,
        evaluator=MulticlassClassificationEvaluator(metricName="logLoss"),
        parallelism=2,
        seed=1,
        **ways,
    ).fit(data)
    short, long = tuned.avgMetrics if kind is CrossValidator else tuned.validationMetrics
    assert long < short
    best = tuned.bestModel
    assert isinstance(best, TorchModel)
    assert best.getMaxIter() == 40
    assert len(best.history) == 40
    assert tuned.transform(data).select("probability", "prediction").count() == 90


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
