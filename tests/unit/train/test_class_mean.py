"""Losses whose mean is not over the rows: with weights of classes and ignored labels, on ranks of unequal size."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.errors import InputError
from sparkdl_comm.ml.components import make_row_loss
from sparkdl_comm.train.class_mean import ClassMean
from sparkdl_comm.train.training_loop import TrainingLoop
from tests.slow import slow
from tests.unit.ranks import train

CLASSES = RowFormat((Field("featuresCol", "x"),), (Field("labelCol", "y", "int64"),))
PARTS = (11, 0, 13)
WEIGHT = torch.tensor([0.1, 3.0, 1.0])


class Net(nn.Sequential):
    """Three classes, or three for each of two places."""

    def __init__(self, *places: int) -> None:
        super().__init__(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3 * max([1, *places])), nn.Unflatten(1, (3, *places)))


def table(*places: int, ignored: int = -100) -> tuple[torch.Tensor, torch.Tensor]:
    """24 rows; classes are unequally frequent on the ranks, and some labels are `ignored`."""
    random = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 3, (24, *places), generator=random)
    labels[:5] = 1
    labels[9:19] = ignored
    return torch.randn(24, 6, generator=random), labels


def cut(*columns: torch.Tensor) -> list[RowCache]:
    return [RowCache((x,), (y,)) for x, y in zip(*(column.split(PARTS) for column in columns), strict=True)]


def in_one_process(make: Callable[[], nn.Module], loss: Any, data: Any, epochs: int) -> nn.Module:
    torch.manual_seed(5)
    module = make()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss(module(data[0]), data[1]).backward()
        optimizer.step()
    return module


def assert_same(loops: list[TrainingLoop], module: nn.Module) -> None:
    expected = nn.utils.parameters_to_vector(module.parameters())
    for loop in loops:
        got = nn.utils.parameters_to_vector(loop.model.module.parameters())
        assert (got - expected).norm() / expected.norm() <= 1e-5


class Weighted(nn.CrossEntropyLoss):
    """Sets the weights, and no more."""

    def __init__(self) -> None:
        super().__init__(weight=WEIGHT)


class Doubled(nn.CrossEntropyLoss):
    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(output, target)


class Called(nn.CrossEntropyLoss):
    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 2 * super().__call__(output, target)


def patched() -> nn.Module:
    loss = nn.CrossEntropyLoss()
    loss.forward = lambda output, target: output.sum()
    return loss


@pytest.mark.parametrize("accumulation", [slow(1), 3])
@pytest.mark.parametrize("loss", [
    nn.CrossEntropyLoss(),
    nn.CrossEntropyLoss(WEIGHT),
    Weighted(),
    nn.CrossEntropyLoss(WEIGHT, ignore_index=2, label_smoothing=0.1),
    nn.functional.cross_entropy,
    functools.partial(nn.functional.cross_entropy, weight=WEIGHT, ignore_index=2),
])  # fmt: skip
@pytest.mark.parametrize("shuffle", ["local", slow("global")])
def test_the_mean_of_one_process(loss: Any, accumulation: int, shuffle: str) -> None:
    mean = ClassMean.of(loss, CLASSES)
    assert mean is not None
    data = table(ignored=mean.ignored)
    batch = -(-24 // accumulation)
    settings: dict[str, Any] = {"batch": batch, "accumulation_steps": accumulation, "epochs": 6, "rows": CLASSES}
    loops = train(Net, cut(*data), loss=loss, conf={"data_shuffle": shuffle}, **settings)
    assert loops[0].progress.step == 6
    module = in_one_process(Net, loss, data, 6)
    assert_same(loops, module)
    told = sum(loop.progress.history[-1]["loss"] for loop in loops)
    before = in_one_process(Net, loss, data, 5)
    assert told == pytest.approx(loss(before(data[0]), data[1]).item(), rel=1e-5)

    def by_rows(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Each rank's own mean, by its share of the rows."""
        pairs = zip(output.split(PARTS), target.split(PARTS), strict=True)
        return torch.stack([loss(*pair) * len(pair[0]) / 24 for pair in pairs if len(pair[0])]).sum()

    with pytest.raises(AssertionError):
        assert_same(loops, in_one_process(Net, by_rows, data, 6))


WEIGHTED = replace(CLASSES, weight="weightCol 'w'")
REDUCIBLE = pytest.mark.parametrize("loss", [
    nn.CrossEntropyLoss(WEIGHT),
    Weighted(),
    nn.CrossEntropyLoss(WEIGHT, ignore_index=2, label_smoothing=0.1),
    nn.CrossEntropyLoss(torch.full((3,), 4.0), ignore_index=7),
    nn.CrossEntropyLoss(torch.ones(3)),
    functools.partial(nn.functional.cross_entropy, weight=WEIGHT, ignore_index=2),
])  # fmt: skip


def weighed(loss: Any, weights: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Plain torch: the sum of weight x class weight x loss by the sum of weight x class weight."""
    said = loss.keywords if isinstance(loss, functools.partial) else {**loss.state_dict(), **vars(loss)}
    by_class, ignored = said["weight"], said["ignore_index"]
    each = make_row_loss(loss)

    def mean(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        counts = by_class[target.clamp(0)] * (target != ignored)
        return (each(output, target) * weights).sum() / (counts * weights).sum()

    return mean


@pytest.mark.parametrize("accumulation", [slow(1), 3])
@pytest.mark.parametrize("ones", [slow(True), False])
@REDUCIBLE
def test_weights_of_rows_beside_those_of_classes(loss: Any, ones: bool, accumulation: int) -> None:
    """Weights of ones change nothing."""
    ignored = 2 if getattr(loss, "label_smoothing", 1) else 0
    data = table(ignored=ignored)
    weights = torch.ones(24) if ones else torch.rand(24, generator=torch.Generator().manual_seed(4)) * 2
    expected = loss if ones else weighed(loss, weights)
    parts = [replace(part, weights=own) for part, own in zip(cut(*data), weights.split(PARTS), strict=True)]
    settings: dict[str, Any] = {"batch": -(-24 // accumulation), "accumulation_steps": accumulation, "epochs": 6}
    loops = train(Net, parts, validation=parts, loss=make_row_loss(loss), rows=WEIGHTED, **settings)
    module = in_one_process(Net, expected, data, 6)
    assert_same(loops, module)
    last = loops[0].progress.history[-1]
    assert last["val_loss"] == pytest.approx(expected(module(data[0]), data[1]).item(), rel=1e-5)
    told = sum(loop.progress.history[-1]["loss"] for loop in loops)
    assert told == pytest.approx(expected(in_one_process(Net, expected, data, 5)(data[0]), data[1]).item(), rel=1e-5)


def test_of_logarithms_for_several_labels_per_row() -> None:
    class Logarithms(Net):
        def __init__(self) -> None:
            super().__init__(2)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return super().forward(rows).log_softmax(1)

    loss, data = nn.NLLLoss(WEIGHT), table(2)
    loops = train(Logarithms, cut(*data), loss=loss, epochs=4, rows=CLASSES)
    assert_same(loops, in_one_process(Logarithms, loss, data, 4))


def test_validation() -> None:
    loss, data = nn.CrossEntropyLoss(WEIGHT), table()
    loops = train(Net, cut(*data), validation=cut(*data), loss=loss, batch=8, epochs=2, rows=CLASSES)
    found = [loop.progress.history[-1]["val_loss"] for loop in loops]
    assert found == pytest.approx([loss(loops[0].model.module(data[0]), data[1]).item()] * 3, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "purpose"),
    [
        (nn.CrossEntropyLoss(ignore_index=7), "validation"),
        (nn.CrossEntropyLoss(torch.tensor([1.0, 1.0, 0.0])), "validation"),
        (nn.CrossEntropyLoss(ignore_index=7), "training"),
    ],
)
def test_no_label_counts(loss: nn.CrossEntropyLoss, purpose: str) -> None:
    """Before any step."""
    features, labels = table(ignored=0)
    uncounted = torch.full_like(labels, 7 if loss.weight is None else 2)
    rows = replace(CLASSES, validation="validationIndicatorCol 'held'")
    training, validation = cut(features, labels), cut(features, uncounted)
    if purpose == "training":
        training, validation = validation, training
    chosen = r" \(by validationIndicatorCol 'held'\)" if purpose == "validation" else ""
    message = rf"labelCol 'y': no label of the rows for {purpose}{chosen} counts in the loss: .*{loss.ignore_index}"
    with pytest.raises(InputError, match=message):
        train(Net, training, validation=validation, loss=loss, epochs=1, rows=rows)


def test_steps_in_which_no_label_counts() -> None:
    """24 steps of one row; those with an ignored label change nothing."""
    loops = train(Net, cut(*table()), loss=nn.CrossEntropyLoss(), batch=1, epochs=1, rows=CLASSES)
    assert loops[0].progress.step == 24
    assert all(torch.isfinite(loop.model.values).all() for loop in loops)


@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        (nn.MultiMarginLoss(weight=WEIGHT), CLASSES),
        (nn.MSELoss(), CLASSES),
        (lambda output, target: output.sum(), CLASSES),
        (Doubled(), CLASSES),
        (Called(), CLASSES),
        (patched(), CLASSES),
        (nn.CrossEntropyLoss(WEIGHT), RowFormat(targets=(Field("labelCol", "y", "float32"),))),
    ],
)
def test_means_over_the_rows(loss: Any, rows: RowFormat) -> None:
    assert ClassMean.of(loss, rows) is None
