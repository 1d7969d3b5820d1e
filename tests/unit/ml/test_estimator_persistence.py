"""Saving and loading estimators: alone, in a Pipeline, in tuning; what is kept, and what has to be given again."""

import functools
import json
from pathlib import Path

import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import SparkSession

from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.errors import ModelError, PersistenceError
from sparkdl_comm.ml.params import COMPONENTS
from tests.nets import Sum, TwoClasses, make_two_classes

pytestmark = pytest.mark.usefixtures("spark")


def again(estimator: TorchEstimator, path: Path) -> TorchEstimator:
    estimator.save(str(path))
    return TorchEstimator.load(str(path))


def test_round_trip(tmp_path: Path) -> None:
    estimator = TorchEstimator(
        model=make_two_classes,
        loss="CrossEntropyLoss",
        optimizer=functools.partial(torch.optim.SGD, lr=0.5, momentum=0.9),
        batchSize=7,
        features_col="x",
    )
    loaded = again(estimator, tmp_path / "estimator")
    assert loaded.uid == estimator.uid
    assert (loaded.model, loaded.loss) == (make_two_classes, "CrossEntropyLoss")
    assert (loaded.optimizer.func, loaded.optimizer.keywords) == (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9})
    assert (loaded.getBatchSize(), loaded.getFeaturesCol(), loaded.isSet("maxIter")) == (7, "x", False)
    with pytest.raises(PersistenceError, match="already exists"):
        estimator.save(str(tmp_path / "estimator"))
    estimator.setBatchSize(8).write().overwrite().save(str(tmp_path / "estimator"))
    assert TorchEstimator.load(str(tmp_path / "estimator")).getBatchSize() == 8


def test_every_component_is_kept(tmp_path: Path) -> None:
    estimator = TorchEstimator()
    for name in COMPONENTS:
        setattr(estimator, name, functools.partial(make_two_classes, name))
    loaded = again(estimator, tmp_path / "estimator")
    for name in COMPONENTS:
        assert getattr(loaded, name).args == (name,)


def test_weights_of_classes(tmp_path: Path) -> None:
    weight = torch.tensor([1.0, 4.0])
    loaded = again(TorchEstimator(model=TwoClasses, loss=torch.nn.CrossEntropyLoss(weight)), tmp_path / "estimator")
    assert torch.equal(loaded.loss.weight, weight)


def test_lambdas_have_to_be_given(tmp_path: Path) -> None:
    path = str(tmp_path / "estimator")

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).abs().mean()

    estimator = TorchEstimator(model=Sum, loss=loss, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    message = (
        r"loss \(function tests\.unit.*<locals>\.loss\) cannot be imported by name; optimizer \(function .*<lambda>\)"
        r" cannot be imported by name\. Give what is missing: load\(path, loss=\.\.\., optimizer=\.\.\.\)"
    )
    with pytest.warns(UserWarning, match=message):
        estimator.save(path)
    with pytest.raises(PersistenceError, match=message):
        TorchEstimator.load(path)
    with pytest.raises(PersistenceError, match="Give what is missing: load"):
        TorchEstimator.load(path, loss=loss)
    loaded = TorchEstimator.load(path, loss=loss, optimizer=torch.optim.Adam)
    assert (loaded.model, loaded.loss, loaded.optimizer) == (Sum, loss, torch.optim.Adam)
    with pytest.raises(TypeError, match="unknown batchSize; known: model, loss, optimizer"):
        TorchEstimator.load(path, batchSize=3)


def test_a_module_keeps_its_weights(tmp_path: Path) -> None:
    path = str(tmp_path / "estimator")
    with pytest.warns(UserWarning, match="model \\(instance of tests.nets:Sum"):
        TorchEstimator(model=Sum(4.0), loss="MSELoss").save(path)
    with pytest.raises(PersistenceError, match=r"load\(path, model=\.\.\.\)"):
        TorchEstimator.load(path)
    for given in (Sum(1.0), Sum):
        assert TorchEstimator.load(path, model=given).model.factor.item() == 4.0
    with pytest.raises(ModelError, match="factor"):
        TorchEstimator.load(path, model=TwoClasses)


def test_a_trained_model_is_kept(tmp_path: Path) -> None:
    trained = TorchModel(Sum(4.0), False, {"history": [{"epoch": 1}]}, factory=Sum)
    loaded = again(TorchEstimator(model=trained, loss="MSELoss"), tmp_path / "estimator")
    assert isinstance(loaded.model, TorchModel)
    assert (loaded.model.module.factor.item(), loaded.model.history) == (4.0, [{"epoch": 1}])
    assert loaded.model.uid == trained.uid


@pytest.mark.slow
def test_pipeline(tmp_path: Path) -> None:
    estimator = TorchEstimator(model=TwoClasses, loss="CrossEntropyLoss", batchSize=5)
    path = str(tmp_path / "pipeline")
    Pipeline(stages=[VectorAssembler(inputCols=["a"], outputCol="features"), estimator]).save(path)
    assembler, loaded = Pipeline.load(path).getStages()
    assert assembler.getInputCols() == ["a"]
    assert (loaded.uid, loaded.model, loaded.getBatchSize()) == (estimator.uid, TwoClasses, 5)


@pytest.mark.slow
def test_cross_validator(tmp_path: Path) -> None:
    estimator = TorchEstimator(model=Sum, loss="MSELoss")
    grid = ParamGridBuilder().addGrid(estimator.batchSize, [5, 6]).build()
    path = str(tmp_path / "tuning")
    CrossValidator(estimator=estimator, estimatorParamMaps=grid, evaluator=RegressionEvaluator(), numFolds=4).save(path)
    loaded = CrossValidator.load(path)
    assert loaded.getNumFolds() == 4
    assert loaded.getEstimator().model is Sum
    sizes = [loaded.getEstimator().copy(chosen).getBatchSize() for chosen in loaded.getEstimatorParamMaps()]
    assert sizes == [5, 6]


def test_something_else(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PersistenceError, match="there is nothing at"):
        TorchEstimator.load(str(tmp_path / "nowhere"))
    with pytest.raises(PersistenceError, match="not a saved TorchEstimator"):
        TorchEstimator.load(str(tmp_path))
    TorchEstimator(model=Sum, loss="MSELoss").save(str(tmp_path / "estimator"))
    metadata = json.loads((tmp_path / "estimator/metadata/part-00000").read_text())
    assert metadata["class"] == "sparkdl_comm.TorchEstimator"
    assert metadata["ingredients"]["model"] == {"import": "tests.nets:Sum"}
