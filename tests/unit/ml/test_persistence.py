"""Saving and loading: what is in the directory, what it takes to rebuild, what happens when it fails."""

import functools
import json
import os
import warnings
from pathlib import Path

import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.util import DefaultParamsReader
from pyspark.sql import SparkSession

from sparkdl_comm.errors import ModelError, PersistenceError
from sparkdl_comm.ml.model import TorchModel
from sparkdl_comm.storage.session import DriverStorage
from tests.nets import Scaled, Sum, Tied, TwoClasses, make_two_classes, not_a_module


@pytest.fixture
def model(spark: SparkSession) -> TorchModel:
    trained = TorchModel(TwoClasses(), True, {"world": 3, "history": []}, [2], make_two_classes, "exp")
    with torch.no_grad():
        trained.module.linear.weight.mul_(7)
    return trained.setFeaturesCol("x").setBatchSize(9)


def weights(model: TorchModel) -> dict[str, torch.Tensor]:
    return model.module.state_dict()


def test_round_trip(model: TorchModel, tmp_path: Path) -> None:
    path = str(tmp_path / "new/parent/model")
    model.save(path)
    loaded = TorchModel.load(path)
    assert torch.equal(weights(loaded)["linear.weight"], weights(model)["linear.weight"])
    assert not loaded.module.training
    assert (loaded.uid, loaded.summary, loaded.classification) == (model.uid, model.summary, True)
    assert (loaded.output_shape, loaded.factory, loaded.activation) == ([2], make_two_classes, "exp")
    assert (loaded.getFeaturesCol(), loaded.getBatchSize(), loaded.getLabelCol()) == ("x", 9, "label")
    assert not loaded.isSet("labelCol")
    assert loaded.getStrategy() is None


def test_layout(model: TorchModel, spark: SparkSession, tmp_path: Path) -> None:
    model.save(str(tmp_path / "model"))
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in files if not name.endswith(".crc")} == {
        "model/metadata/part-00000",
        "model/metadata/_SUCCESS",
        "model/model.safetensors",
    }
    line = (tmp_path / "model/metadata/part-00000").read_text()
    assert line.count("\n") == 1
    metadata = json.loads(line)
    assert metadata["class"] == "sparkdl_comm.TorchModel"
    assert metadata["paramMap"] == {"featuresCol": "x", "batchSize": 9}
    assert metadata["formatVersion"] == 1
    # what pyspark itself reads
    assert DefaultParamsReader.loadMetadata(str(tmp_path / "model"), spark.sparkContext)["uid"] == model.uid
    assert DefaultParamsReader.loadParamsInstance(str(tmp_path / "model"), spark.sparkContext).uid == model.uid


def test_overwrite(model: TorchModel, tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    model.save(path)
    with pytest.raises(PersistenceError, match=r"model already exists; .*overwrite\(\)"):
        model.save(path)
    with torch.no_grad():
        model.module.linear.weight.zero_()
    model.write().overwrite().save(path)
    assert not weights(TorchModel.load(path))["linear.weight"].any()
    assert os.listdir(tmp_path) == ["model"]


def test_failed_overwrite_keeps_the_old_model(
    model: TorchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "model")
    model.save(path)
    rename, calls = DriverStorage.rename, []

    def second_fails(self: DriverStorage, source: str, target: str) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise PersistenceError("disk gone")
        rename(self, source, target)

    monkeypatch.setattr(DriverStorage, "rename", second_fails)
    with pytest.raises(PersistenceError, match="disk gone"):
        model.write().overwrite().save(path)
    assert len(calls) == 3, "away, in place, and back"
    assert TorchModel.load(path).uid == model.uid
    assert os.listdir(tmp_path) == ["model"]


def test_unwritable(model: TorchModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    path = str(tmp_path / "file" / "model")
    with pytest.raises(PersistenceError, match=f"cannot .* {path}"):
        model.save(path)
    with pytest.raises(PersistenceError, match="cannot open nosuch://host/model"):
        model.save("nosuch://host/model")
    assert os.listdir(tmp_path) == ["file"]


def test_failed_write_leaves_nothing(model: TorchModel, tmp_path: Path) -> None:
    model.module.register_buffer("strange", torch.zeros(2, 2).to_sparse())
    with pytest.raises(ModelError, match="safetensors"):
        model.save(str(tmp_path / "model"))
    assert os.listdir(tmp_path) == []


def test_any_file_system(model: TorchModel, spark: SparkSession, tmp_path: Path) -> None:
    """viewfs is not the local file system, so this is the way that HDFS takes."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.test.link./models", tmp_path.as_uri())
    path = "viewfs://test/models/one"
    model.save(path)
    assert os.listdir(tmp_path) == ["one"]
    assert TorchModel.load(path).uid == model.uid
    with pytest.raises(PersistenceError, match="already exists"):
        model.save(path)


def test_tied_tensors(spark: SparkSession, tmp_path: Path) -> None:
    module = Tied()
    path = str(tmp_path / "model")
    TorchModel(module, False, factory=Tied).save(path)
    loaded = TorchModel.load(path).module
    assert torch.equal(loaded.encoder.weight, module.encoder.weight)
    assert loaded.decoder.weight is loaded.encoder.weight
    size = (tmp_path / "model/model.safetensors").stat().st_size
    assert size < 9 * 4 * 2 + 3 * 4 + 250, "stored once"


def test_partial_with_a_tensor_among_its_arguments(spark: SparkSession, tmp_path: Path) -> None:
    factory = functools.partial(
        Scaled, torch.tensor([1.0, 3.0]), layer=functools.partial(torch.nn.Linear, 2, bias=False)
    )
    saved = TorchModel(factory(), False, output_shape=[2], factory=factory)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert torch.equal(loaded.module.layer.weight, saved.module.layer.weight)
    assert torch.equal(loaded.factory().scale, torch.tensor([1.0, 3.0]))
    (tmp_path / "model/ingredients.safetensors").write_bytes(b"")
    with pytest.raises(PersistenceError, match=r"cannot read ingredients\.safetensors"):
        TorchModel.load(str(tmp_path / "model"))


def test_model_needed_and_given(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    module = Sum(4.0)
    message = r"model \(instance of tests\.nets:Sum\) cannot be imported by name.* load\(path, model=\.\.\.\)"
    with pytest.warns(UserWarning, match=message):
        TorchModel(module, False).save(path)
    with pytest.raises(PersistenceError, match=message):
        TorchModel.load(path)
    given = Sum(0.0)
    for model in (given, Sum, lambda: Sum(1.0)):
        assert TorchModel.load(path, model=model).module.factor.item() == 4.0
    assert given.factor.item() == 0.0, "a module given is copied"
    with pytest.raises(ModelError, match="factor"):
        TorchModel.load(path, model=TwoClasses)
    with pytest.raises(PersistenceError, match="made a int"):
        TorchModel.load(path, model=not_a_module)


@pytest.mark.parametrize(
    "factory", ["tests.nowhere:f", "tests.nets:Gone", "tests.nets:not_a_module", "tests.nets:Scaled"]
)
def test_factory_gone(model: TorchModel, tmp_path: Path, factory: str) -> None:
    model.save(str(tmp_path / "model"))
    metadata = tmp_path / "model/metadata/part-00000"
    metadata.write_text(metadata.read_text().replace("tests.nets:make_two_classes", factory))
    with pytest.raises(PersistenceError, match=factory.split(":")[1]):
        TorchModel.load(str(tmp_path / "model"))
    assert TorchModel.load(str(tmp_path / "model"), model=TwoClasses).uid == model.uid


def test_nothing_there_or_something_else(spark: SparkSession, model: TorchModel, tmp_path: Path) -> None:
    with pytest.raises(PersistenceError, match="there is nothing at"):
        TorchModel.load(str(tmp_path / "nowhere"))
    with pytest.raises(PersistenceError, match="not a saved TorchModel"):
        TorchModel.load(str(tmp_path))
    model.save(str(tmp_path / "model"))
    (tmp_path / "model/model.safetensors").write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(PersistenceError, match=r"cannot read model\.safetensors"):
        TorchModel.load(str(tmp_path / "model"))


def test_newer_format(model: TorchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl_comm.ml.persistence.FORMAT", 2)
    model.save(str(tmp_path / "model"))
    monkeypatch.undo()
    with pytest.raises(PersistenceError, match="format 2"):
        TorchModel.load(str(tmp_path / "model"))


def test_pipeline(model: TorchModel, spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([(0.0, 1.0), (2.0, 1.0)], "a double, b double")
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="x")
    pipeline = Pipeline(stages=[assembler, model]).fit(df)
    path = str(tmp_path / "pipeline")
    pipeline.save(path)
    pipeline.write().overwrite().save(path)
    loaded = PipelineModel.load(path)
    assert [row.prediction for row in loaded.transform(df).collect()] == [0.0, 1.0]


def test_the_class_in_saved_pipelines(model: TorchModel, tmp_path: Path) -> None:
    path = str(tmp_path / "pipeline")
    PipelineModel([model]).save(path)
    (saved,) = (tmp_path / "pipeline" / "stages").glob("*/metadata/part-00000")
    assert '"class":"sparkdl_comm.TorchModel"' in saved.read_text().replace(" ", "")
    (stage,) = PipelineModel.load(path).stages
    assert isinstance(stage, TorchModel)
