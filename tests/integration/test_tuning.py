"""Tuning, with more fits at a time than the cluster has slots for."""

import functools

import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit
from pyspark.sql import functions as F

from sparkdl_comm import TorchEstimator, TorchModel
from tests.integration.test_training import OPTIMIZERS, frame


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CrossValidator, TrainValidationSplit])
def test_the_better_of_two_is_found(spark, kind, tmp_path):
    """Each fit needs all three slots, and two are started at a time. In a Pipeline, or with all models kept."""
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
        maxIter=40,
    )
    cross = kind is CrossValidator
    tried = {True: (estimator.maxIter, [1, 40]), False: (estimator.learningRate, [1e-5, 0.05])}[cross]
    grid = ParamGridBuilder().addGrid(*tried).build()
    ways = {"numFolds": 2, "collectSubModels": True} if cross else {"trainRatio": 0.7}
    tuned = kind(
        estimator=estimator if cross else Pipeline(stages=[estimator]),
        estimatorParamMaps=grid,
        evaluator=MulticlassClassificationEvaluator(metricName="logLoss"),
        parallelism=2,
        seed=1,
        **ways,
    ).fit(data)
    worse, better = tuned.avgMetrics if cross else tuned.validationMetrics
    assert better < worse
    best = tuned.bestModel if cross else tuned.bestModel.stages[0]
    assert isinstance(best, TorchModel)
    assert best.getMaxIter() == 40
    assert best.getLearningRate() == (None if cross else 0.05)
    assert len(best.history) == 40
    scored = tuned.transform(data).select("features", "probability", "prediction")
    assert scored.count() == 300

    tuned.save(str(tmp_path / "tuned"))
    again = type(tuned).load(str(tmp_path / "tuned"))
    given = again.getEstimator() if cross else again.getEstimator().getStages()[0]
    assert given.optimizer.keywords == estimator.optimizer.keywords
    if cross:
        assert again.avgMetrics == tuned.avgMetrics
        for fold, models in enumerate(tuned.subModels):
            for place, model in enumerate(models):  # not again.subModels: PySpark 3.5 reads the last fold's for all
                saved = TorchModel.load(str(tmp_path / f"tuned/subModels/fold{fold}/{place}"))
                assert torch.equal(model.module.weight, saved.module.weight)
    scored_again = again.transform(data).select(scored.columns)
    assert sorted(scored_again.collect()) == sorted(scored.collect())
