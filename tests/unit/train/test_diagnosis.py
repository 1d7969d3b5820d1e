"""Labels against the model's classes, features against its first layer."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from sparkdl_comm.data.cache import Batch, RowCache
from sparkdl_comm.data.fields import Field
from sparkdl_comm.errors import InputError, ModelError
from sparkdl_comm.ml.components import class_labels
from sparkdl_comm.ml.prediction import Predictor
from sparkdl_comm.ml.scoring import Scoring
from sparkdl_comm.train.diagnosis import ClassLabels, explain_error, explain_shape
from sparkdl_comm.train.objective import Objective

LABEL, IMAGE = Field("labelCol", "y", "int64", ()), Field("featuresCol", "x")


def rows(*labels: Any) -> RowCache:
    return RowCache((torch.zeros(len(labels), 1),), (torch.tensor(labels),))


def test_labels() -> None:
    output = torch.zeros(2, 3)
    ClassLabels(LABEL).check(output, [rows(0, 1, 2), rows(2)], 0)
    with pytest.raises(
        InputError,
        match="3 of 5 rows of rank 4 have a label outside of 0 to 2 in labelCol 'y', such as 3: .* 3 classes",
    ):
        ClassLabels(LABEL).check(output, [rows(0, 3, 2), rows(-1, -100)], 4)
    with pytest.raises(InputError, match="2 of 5 rows"):
        ClassLabels(LABEL, -100).check(output, [rows(0, 3, 2), rows(-1, -100)], 4)
    pixels = torch.zeros(2, 3, 2)
    with pytest.raises(InputError, match="1 of 2 rows"):
        ClassLabels(LABEL).check(pixels, [rows([0, 1], [7, 8])], 0)


@pytest.mark.parametrize(
    ("output", "labels", "message"),
    [
        (torch.zeros(2), [0, 1], r"takes \[classes\] per row, .* labelCol 'y'\. The model's output is \[\]"),
        (torch.zeros(2, 3), [[0], [1]], r"takes \[classes, 1\] per row, .* output is \[3\]"),
        (torch.zeros(2, 3, 5), [[0, 1], [1, 2]], r"takes \[classes, 2\] per row, .* output is \[3, 5\]"),
        ({"logits": torch.zeros(2, 3)}, [0, 1], r"takes \[classes\] .* output is a dict"),
    ],
)
def test_outputs_of_another_shape(output: Any, labels: list[Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ClassLabels(LABEL).check(output, [rows(*labels)], 0)


@pytest.mark.parametrize(
    ("loss", "ignored"),
    [
        (nn.CrossEntropyLoss(), -100),
        (nn.NLLLoss(ignore_index=5), 5),
        (nn.functional.cross_entropy, -100),
        (functools.partial(nn.functional.nll_loss, ignore_index=7), 7),
        (nn.MultiMarginLoss(), None),
    ],
)
def test_losses_over_classes(loss: Any, ignored: int | None) -> None:
    assert class_labels(loss, [LABEL]) == ClassLabels(LABEL, ignored)
    assert class_labels(loss, [LABEL, LABEL]) is None
    assert class_labels(loss, [Field("labelCol", "y", "float32")]) is None, "probabilities"


def test_other_losses() -> None:
    assert class_labels(lambda output, target: output.sum(), [LABEL]) is None
    assert class_labels(nn.MSELoss(), [LABEL]) is None


def test_first_layer() -> None:
    dense, pictures = nn.Sequential(nn.Linear(784, 10)), nn.Sequential(nn.Conv2d(1, 6, 5), nn.Flatten())
    assert explain_shape(dense, [torch.zeros(2, 784)], [IMAGE]) is None
    assert explain_shape(pictures, [torch.zeros(2, 1, 28, 28)], [IMAGE]) is None
    assert explain_shape(dense, [torch.zeros(2, 28), torch.zeros(2, 1)], [IMAGE, IMAGE]) is None, (
        "which of them is unknown"
    )
    found = explain_shape(dense, [torch.zeros(2, 28)], [IMAGE])
    assert found is not None
    assert r"a row of featuresCol 'x' is [28], and the model's first layer, 0 (Linear(in_features=784" in found
    assert "takes […, 784]" in found
    for shape in ([2, 784], [2, 3, 28, 28]):
        found = explain_shape(pictures, [torch.zeros(shape)], [IMAGE])
        assert found is not None
        assert "takes [1, height, width]: change the layer, or set inputShapes" in found


class Rated(nn.Module):
    """Looks users up; the other column are numbers."""

    def __init__(self, place: str = "layer") -> None:
        super().__init__()
        self.users, self.numbers, self.place = nn.Embedding(5, 3), nn.Linear(1, 3), place

    def forward(self, user: torch.Tensor, age: torch.Tensor) -> torch.Tensor:
        looked_up = self.users(user) if self.place == "layer" else self.users.weight[user]
        return looked_up * self.numbers(age.reshape(-1, 1))


FIELDS = [Field("featuresCols", "user"), Field("featuresCols", "age")]


@pytest.mark.parametrize(
    ("place", "inputs", "column", "advice"),
    [
        ("layer", [torch.zeros(4), torch.zeros(4)], "'user' as float32", "set inputTypes to ['int64', 'float32']"),
        (
            "index",
            [torch.zeros(4), torch.zeros(4)],
            "'user' as float32 or ",
            "set inputTypes, which has a type for each",
        ),
        (
            "layer",
            [torch.zeros(4).long(), torch.ones(4).long()],
            "'age' as int64",
            "set inputTypes to ['int64', 'float32']",
        ),
    ],
)
def test_types_beside_an_embedding(place: str, inputs: list[torch.Tensor], column: str, advice: str) -> None:
    """By fit and transform alike; the column that the failing layer got, not the other one."""
    module = Rated(place)
    with pytest.raises(ModelError, match="set inputTypes") as raised:
        Objective(nn.MSELoss(), "fp32", torch.device("cpu"), FIELDS)(module, Batch(tuple(inputs), (torch.zeros(4, 3),)))
    assert f"the model does not take featuresCols {column}" in str(raised.value)
    assert advice in str(raised.value)
    frames = [pd.DataFrame({"value": rows.numpy(), "null": np.zeros(4, bool)}) for rows in inputs]
    fields = [replace(field, dtype=str(rows.numpy().dtype)) for field, rows in zip(FIELDS, inputs, strict=True)]
    predictor = Predictor(module, fields, 4, Scoring("vector", None, ("prediction",)), "cpu")
    with pytest.raises(InputError, match=r"set inputTypes"):
        list(predictor.predict(iter([tuple(frames)])))


def test_other_errors_of_a_model_stay_as_they_are() -> None:
    module = nn.Embedding(5, 3)
    with pytest.raises(IndexError) as raised:
        module(torch.tensor([7]))
    assert explain_error(raised.value, module, [torch.tensor([7])], FIELDS[:1]) is None
