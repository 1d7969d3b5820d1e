"""Exported modules, read back by torch and by ONNX's own evaluator, give what the model gives."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from sparkdl_comm import TorchModel
from sparkdl_comm.errors import ModelError, PersistenceError
from sparkdl_comm.networks import SmallLeNet

pytestmark = pytest.mark.usefixtures("spark")
IMAGES = torch.rand(5, 784, generator=torch.Generator().manual_seed(1))


class OneOrTwo(torch.nn.Module):
    """Does another thing if there are many rows, which a recording does not."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * 2 if rows.shape[0] > 2 else rows


class Opaque(torch.nn.Module):
    """Nothing that torch can see into."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.tensor([float(os.getpid())] * len(rows.tolist()))


@pytest.fixture(scope="module")
def model() -> TorchModel:
    torch.manual_seed(0)
    return TorchModel(SmallLeNet().train(), True, output_shape=[10]).setFeaturesCol("pixels")


def expected(model: TorchModel) -> torch.Tensor:
    with torch.inference_mode():
        return model.to_torch()(IMAGES)


@pytest.mark.parametrize(
    "example", [None, torch.zeros(1, 784), (torch.zeros(2, 784),)], ids=["script", "trace", "tuple"]
)
@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_torchscript(model: TorchModel, tmp_path: Path, example: torch.Tensor | None) -> None:
    path = tmp_path / "new/lenet.pt"
    model.export_torchscript(str(path), example)
    assert torch.equal(torch.jit.load(path)(IMAGES), expected(model))
    assert model.module.training, "left as it was"


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_what_is_compiled_keeps_its_branches(tmp_path: Path) -> None:
    path = tmp_path / "branches.pt"
    TorchModel(OneOrTwo(), False).export_torchscript(path.as_uri())
    assert torch.equal(torch.jit.load(path)(torch.ones(3, 1)), torch.full((3, 1), 2.0))
    assert torch.equal(torch.jit.load(path)(torch.ones(1, 1)), torch.ones(1, 1))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.slow
def test_onnx_takes_any_number_of_rows(model: TorchModel, tmp_path: Path, rows: int) -> None:
    path = tmp_path / "lenet.onnx"
    model.export_onnx(str(path), torch.zeros(rows, 784))
    onnx.checker.check_model(str(path))
    (output,) = ReferenceEvaluator(str(path)).run(None, {"pixels": IMAGES.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), expected(model))


@pytest.mark.slow
def test_options_reach_the_exporter(model: TorchModel, tmp_path: Path) -> None:
    path = tmp_path / "lenet.onnx"
    model.export_onnx(str(path), IMAGES, input_names=["image"], opset_version=18, external_data=False)
    loaded = onnx.load(path)
    assert [given.name for given in loaded.graph.input] == ["image"]
    assert loaded.opset_import[0].version == 18
    assert {name for name in os.listdir(tmp_path) if not name.endswith(".crc")} == {"lenet.onnx"}


def test_any_file_system(model: TorchModel, hadoop_path: tuple[str, Path]) -> None:
    path, folder = hadoop_path
    model.export_onnx(f"{path}/lenet.onnx", IMAGES)
    onnx.checker.check_model(str(folder / "lenet.onnx"))
    model.export_torchscript(f"{path}/lenet.pt", IMAGES)
    assert torch.equal(torch.jit.load(folder / "lenet.pt")(IMAGES), expected(model))


def test_nothing_is_overwritten_unasked(model: TorchModel, tmp_path: Path) -> None:
    path = tmp_path / "lenet.pt"
    path.write_text("mine")
    with pytest.raises(PersistenceError, match="overwrite=True"):
        model.export_torchscript(str(path), IMAGES)
    assert path.read_text() == "mine"
    model.export_torchscript(str(path), IMAGES, overwrite=True)
    assert torch.equal(torch.jit.load(path)(IMAGES), expected(model))


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
@pytest.mark.slow
def test_what_torch_cannot_export(model: TorchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opaque = TorchModel(Opaque(), False)
    with pytest.raises(ModelError, match=r"(?s)torch\.jit\.script cannot export Opaque.*give an example"):
        opaque.export_torchscript(str(tmp_path / "m.pt"))
    with pytest.raises(ModelError, match=r"(?s)torch\.jit\.trace cannot export SmallLeNet.*is the example right"):
        model.export_torchscript(str(tmp_path / "m.pt"), torch.zeros(1, 3))
    with pytest.raises(ModelError, match=r"torch\.onnx\.export cannot export SmallLeNet"):
        model.export_onnx(str(tmp_path / "m.onnx"), torch.zeros(1, 3))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs onnx and onnxscript: pip install 'sparkdl_comm\[onnx\]'"):
        model.export_onnx(str(tmp_path / "m.onnx"), IMAGES)
    assert not os.listdir(tmp_path)
