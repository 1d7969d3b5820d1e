"""Around the steps: validation, metrics, callbacks, early stopping, buffers; on ranks of which one has no rows."""

from typing import Any

import pytest
import torch
import torchmetrics
from torch import nn

from sparkdl_comm import Callback
from sparkdl_comm.errors import CallbackError, ConfError, ModelError
from sparkdl_comm.train.spec import Observation, Stopping
from tests.unit.ranks import Rows, Sharded, train

CLASSES = 3


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, CLASSES))


def table(rows: int, seed: int = 0, *, weights: bool = False) -> Rows:
    random = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, CLASSES, (rows,), generator=random)
    weight = torch.rand(rows, generator=random) if weights else None
    return Rows(torch.randn(rows, 6, generator=random), targets, weight)


TRAINING, VALIDATION = table(30), table(20, 1)
SETTINGS: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "strategy": Sharded}


def parts(data: Rows) -> list[Rows]:
    return data.cut(data.rows - 7, 0, 7)


def test_metrics_are_those_of_one_process() -> None:
    def rate(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.argmax(1) == target).float().mean()

    def make() -> dict[str, Any]:
        return {
            "accuracy": torchmetrics.classification.MulticlassAccuracy(CLASSES),
            "each": torchmetrics.classification.MulticlassF1Score(CLASSES, average=None),
            "auroc": torchmetrics.classification.MulticlassAUROC(CLASSES),  # keeps all outputs
            "rate": rate,
        }

    loops = train(
        Net,
        parts(TRAINING),
        validation=parts(VALIDATION),
        observation=Observation(make()),
        batch=24,  # not 9: torchmetrics takes logits of 3 rows that happen to lie in [0, 1] for probabilities
        epochs=2,
        **SETTINGS,
    )
    module = loops[0].model.module.eval()
    with torch.no_grad():
        output = module(VALIDATION.features)
    for loop in loops:
        row = loop.progress.history[-1]
        assert row["val_loss"] == pytest.approx(nn.functional.cross_entropy(output, VALIDATION.targets).item(), 1e-5)
        for name, metric in make().items():
            expected = metric(output, VALIDATION.targets)
            assert row[name] == pytest.approx(expected.tolist(), 1e-5), name
    assert {key: value for key, value in loops[0].progress.history[1].items() if key not in ("loss", "seconds")} == {
        key: value for key, value in loops[2].progress.history[1].items() if key not in ("loss", "seconds")
    }


def test_validation_is_weighted() -> None:
    held = table(20, 1, weights=True)
    settings = {**SETTINGS, "loss": nn.CrossEntropyLoss(reduction="none")}
    weighted = table(30, weights=True)
    loops = train(Net, parts(weighted), validation=parts(held), epochs=1, **settings)
    with torch.no_grad():
        losses = settings["loss"](loops[0].model.module(held.features), held.targets)
    expected = (losses * held.weights).sum() / held.weights.sum()
    assert loops[0].progress.history[0]["val_loss"] == pytest.approx(expected.item(), 1e-5)


def test_a_metric_that_is_no_scalar() -> None:
    with pytest.raises(ModelError, match=r"metrics\['mine'\]: must return a scalar"):
        train(
            Net, parts(TRAINING), validation=parts(VALIDATION), **SETTINGS,
            observation=Observation({"mine": lambda output, target: output}),
        )  # fmt: skip


LOG: list[tuple[int, str, Any]] = []


class Log(Callback):
    def on_train_begin(self, state: Any) -> None:
        LOG.append((state.rank, "train begin", state.epoch))

    def on_epoch_begin(self, state: Any) -> None:
        LOG.append((state.rank, "epoch begin", state.epoch))

    def on_step_end(self, state: Any) -> None:
        LOG.append((state.rank, "step end", (state.step, state.loss is not None)))

    def on_epoch_end(self, state: Any) -> None:
        LOG.append((state.rank, "epoch end", (state.loss, state.metrics["val_loss"])))
        if state.rank == 2 and state.epoch == 2:
            state.stop()

    def on_train_end(self, state: Any) -> None:
        LOG.append((state.rank, "train end", state.epoch))


def test_callbacks_in_order_and_one_rank_can_stop_all() -> None:
    LOG.clear()
    loops = train(
        Net, parts(TRAINING), validation=parts(VALIDATION), batch=15, epochs=9, **SETTINGS,
        observation=Observation(callbacks=(Log(),)),
    )  # fmt: skip
    epoch = ["epoch begin", "step end", "step end", "epoch end"]
    for rank in range(3):
        mine = [entry for entry in LOG if entry[0] == rank]
        assert [hook for _, hook, _ in mine] == ["train begin", *epoch, *epoch, "train end"]
        steps = [seen for _, hook, seen in mine if hook == "step end"]
        assert steps == [(step, rank != 1) for step in (1, 2, 3, 4)], "the empty rank has no loss"
        ends = [seen for _, hook, seen in mine if hook == "epoch end"]
        rows = [loop.progress.history for loop in loops]
        assert ends == [
            (sum(history[index]["loss"] for history in rows), rows[0][index]["val_loss"]) for index in range(2)
        ]


class Broken(Callback):
    def on_step_end(self, state: Any) -> None:
        if state.rank == 2 and state.step == 2:
            raise ConnectionError("no such file")


def test_a_callback_that_raises() -> None:
    with pytest.raises(
        CallbackError, match="callback Broken.on_step_end raised ConnectionError on rank 2 at step 2: no such file"
    ) as raised:
        train(Net, parts(TRAINING), observation=Observation(callbacks=(Broken(),)), **SETTINGS)
    assert (raised.value.rank, raised.value.step) == (2, 2)


@pytest.mark.parametrize("restore", [True, False])
def test_early_stopping_and_the_best_model(restore: bool) -> None:
    """The value gets better twice, then worse: epochs 1, 2 and 3 are looked at, epoch 2 is the best."""
    values = {1: 0.3, 2: 0.8, 3: 0.5, 4: 0.85}
    kept: dict[int, torch.Tensor] = {}
    current = {"epoch": 0}

    class Keep(Callback):
        def on_epoch_begin(self, state: Any) -> None:
            if state.rank == 0:
                current["epoch"] = state.epoch

        def on_epoch_end(self, state: Any) -> None:
            if state.rank == 0:
                kept[state.epoch] = nn.utils.parameters_to_vector(state.module.parameters()).detach().clone()

    loops = train(
        Net, parts(TRAINING), validation=parts(VALIDATION), epochs=9, **SETTINGS,
        observation=Observation(
            {"mine": lambda output, target: values[current["epoch"]]},
            (Keep(),),
            Stopping(patience=2, monitor="mine", mode="max", min_delta=0.1, restore=restore),
        ),
    )  # fmt: skip
    assert sorted(kept) == [1, 2, 3, 4], "0.85 is no improvement by more than 0.1"
    for loop in loops:
        got = nn.utils.parameters_to_vector(loop.model.module.parameters())
        assert torch.equal(got, kept[2 if restore else 4])
    assert not torch.equal(kept[2], kept[4])


def test_an_unknown_value_to_watch() -> None:
    with pytest.raises(ConfError, match="earlyStoppingMonitor='f1': must be one of .*val_loss"):
        train(
            Net, parts(TRAINING), validation=parts(VALIDATION), **SETTINGS,
            observation=Observation(stopping=Stopping(patience=1, monitor="f1")),
        )  # fmt: skip


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, CLASSES)
        self.register_buffer("table", torch.zeros(600_000))  # as positions have them: equal everywhere, need not travel

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(rows))


def test_running_statistics_are_the_mean_over_the_ranks_weighted_by_rows() -> None:
    loops = train(Normed, parts(TRAINING), epochs=1, **SETTINGS)
    mean = torch.zeros(6)
    var = torch.zeros(6)
    for part in parts(TRAINING):
        if part.rows:
            mean += 0.1 * part.features.mean(0) * part.rows / TRAINING.rows
            var += (0.9 + 0.1 * part.features.var(0)) * part.rows / TRAINING.rows
    for loop in loops:
        norm = loop.model.module.norm
        assert torch.allclose(norm.running_mean, mean, atol=1e-6)
        assert torch.allclose(norm.running_var, var, atol=1e-6)
        assert norm.num_batches_tracked == 1
