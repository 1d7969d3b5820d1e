"""Tuning, with more fits at a time than the cluster has slots for."""

import functools

import pytest
import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit
from pyspark.sql import functions as F

from sparkdl_comm import TorchEstimator, TorchModel
from tests.integration.test_training import OPTIMIZERS, frame


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CrossValidator, TrainValidationSplit])
def test_the_better_of_two_is_found(spark, kind, tmp_path):
    """Each fit needs all three slots, and two are started at a time."""
    data = frame(spark, 300).withColumn(
        "label", (F.aggregate("features", F.lit(0.0).cast("float"), lambda a, b: a + b) > 0).cast("double")
    )
    data = data.cache()
    estimator = TorchEstimator(
        model=functools.partial(torch.nn.Linear, 28, 2),
        loss="CrossEntropyLoss",
        optimizer=OPTIMIZERS["sgd"],
        num_workers=3,
        batchSize=300,
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
    scored = tuned.transform(data).select("features", "probability", "prediction")
    assert scored.count() == 300

    tuned.save(str(tmp_path / "tuned"))
    again = type(tuned).load(str(tmp_path / "tuned"))
    assert again.getEstimator().optimizer.keywords == estimator.optimizer.keywords
    scored_again = again.transform(data).select(scored.columns)
    assert sorted(scored_again.collect()) == sorted(scored.collect())
