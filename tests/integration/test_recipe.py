"""How to train, on three executors: what unit tests show on threads also holds through Spark, ps and gloo."""

import functools
from typing import Any

import numpy as np
import pytest
import torch

from sparkdl_comm import Callback
from sparkdl_comm.errors import CallbackError
from tests.integration.nets import Odd, Small, synchronized
from tests.integration.test_training import ROWS, distance, fit, frame, table
from tests.slow import slow

BOTH = pytest.mark.parametrize("strategy", ["ps", slow("gloo")])


def groups(module: torch.nn.Module) -> list[dict[str, Any]]:
    first, _, last = module.children()
    return [
        {"params": list(first.parameters()), "weight_decay": 0.1},
        {"params": list(last.parameters()), "lr": 0.2},
    ]


def rate(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda n: 0.9**n, lambda n: 1 / (1 + n)])


SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
PLAIN = functools.partial(torch.optim.SGD, lr=0.3)


@BOTH
def test_clipping_accumulation_groups_and_scheduler_as_in_one_process(spark, strategy):
    """88 rows on 3 ranks, 2 batches of 45 per step."""
    rows = ROWS - 2
    model = fit(
        frame(spark, rows), batch=45, epochs=12, strategy=strategy, optimizer=SGD, param_groups=groups,
        lr_scheduler=rate, lrSchedulerInterval="step", accumulationSteps=2, maxGradNorm=0.1,
    )  # fmt: skip
    data = table(rows)
    features, labels = torch.tensor(np.stack(data["features"])), torch.tensor(data["label"].to_numpy())
    torch.manual_seed(5)
    module = Small()
    optimizer = SGD(groups(module))
    scheduler = rate(optimizer)
    clipped = 0
    for _ in range(12):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(features), labels).backward()
        clipped += torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1).item() > 0.1
        optimizer.step()
        scheduler.step()
    assert clipped
    assert distance(model.module.state_dict(), module.state_dict()) <= 1e-5
    assert [row["step"] for row in model.history] == list(range(1, 13))
    assert [row["lr"] for row in model.history] == pytest.approx([0.1 * 0.9**n for n in range(1, 13)])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.slow
def test_autocast_is_close_to_float32(spark, precision):
    exact = fit(frame(spark), epochs=10).module.state_dict()
    off = distance(fit(frame(spark), epochs=10, precision=precision).module.state_dict(), exact)
    assert 1e-7 < off < 2e-2


class Watch(Callback):
    def on_epoch_end(self, state: Any) -> None:
        if state.loss < 2.0 and state.rank == 1:
            state.stop()


class Boom(Callback):
    def on_step_end(self, state: Any) -> None:
        if state.rank == 2 and state.step == 3:
            raise ValueError("the camera is unplugged")


@BOTH
@pytest.mark.slow
def test_callbacks_of_one_rank_stop_or_end_all(spark, strategy):
    model = fit(frame(spark), epochs=200, strategy=strategy, callbacks=[Watch()])
    assert 1 < len(model.history) < 200
    assert model.history[-1]["loss"] < 2.0 <= model.history[-2]["loss"]
    with pytest.raises(
        CallbackError, match=r"callback Boom\.on_step_end raised ValueError on rank 2 at step 3"
    ) as raised:
        fit(frame(spark), strategy=strategy, callbacks=[Watch(), Boom()])
    assert "the camera is unplugged" in str(raised.value)
    assert "in on_step_end" in str(raised.value), "the traceback of the rank"


@BOTH
@pytest.mark.slow
def test_early_stopping_on_the_training_loss_restores_the_best_epoch(spark, strategy):
    """A learning rate that breaks everything from the fourth epoch on."""

    def breaks(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 if epoch < 3 else 1000.0)

    settings = {"epochs": 20, "strategy": strategy, "optimizer": functools.partial(torch.optim.SGD, lr=0.05)}
    model = fit(frame(spark), lr_scheduler=breaks, earlyStoppingPatience=2, earlyStoppingMonitor="loss", **settings)
    losses = [row["loss"] for row in model.history]
    best = losses.index(min(losses))
    assert len(losses) == best + 3 < 20
    # An epoch's loss is that of the parameters before its step.
    again = fit(frame(spark), lr_scheduler=breaks, **{**settings, "epochs": best + 1})
    assert distance(model.module.state_dict(), again.module.state_dict()) == 0.0


@pytest.mark.slow
def test_batch_norm_of_all_ranks_is_averaged(spark):
    model = fit(frame(spark), model=Odd, epochs=4, optimizer=functools.partial(torch.optim.SGD, lr=0.0))
    torch.manual_seed(5)
    module = Odd()
    data = table()
    features = torch.tensor(np.stack(data["features"]))
    for _ in range(4):
        module(features)
    got, whole = model.module.norm, module.norm
    assert torch.allclose(got.running_mean, whole.running_mean, atol=1e-6), "the mean of means, equally many rows each"
    assert (got.running_var - whole.running_var).abs().max() < 0.1
    assert got.num_batches_tracked == 4


def odd_in_one_process(rows: int, epochs: int) -> dict[str, torch.Tensor]:
    data = table(rows)
    features, labels = torch.tensor(np.stack(data["features"])), torch.tensor(data["label"].to_numpy())
    torch.manual_seed(5)
    module = Odd()
    optimizer = PLAIN(module.parameters())
    for _ in range(epochs):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(features), labels).backward()
        optimizer.step()
    return module.state_dict()


@BOTH
@pytest.mark.parametrize("rows", [ROWS - 2, slow(2)])
def test_batch_norm_over_all_ranks_is_that_of_one_process(spark, strategy, rows):
    """The model has frozen, shared, unused and empty parameters. Of 2 rows, one rank has none."""
    model = fit(frame(spark, rows), model=synchronized, epochs=5, optimizer=PLAIN, strategy=strategy)
    assert distance(model.module.state_dict(), odd_in_one_process(rows, 5)) <= 1e-5
    assert model.module.decoder.weight is model.module.encoder.weight


@pytest.mark.slow
def test_batch_norm_of_each_rank_is_not_that_of_one_process(spark):
    model = fit(frame(spark), model=Odd, epochs=5, optimizer=PLAIN)
    assert distance(model.module.state_dict(), odd_in_one_process(ROWS, 5)) > 1e-3


@BOTH
@pytest.mark.slow
def test_a_failure_while_others_wait_for_it_in_batch_norm(spark, strategy):
    with pytest.raises(CallbackError, match=r"callback Boom\.on_step_end raised ValueError on rank 2 at step 3"):
        fit(frame(spark), model=synchronized, strategy=strategy, callbacks=[Boom()])


@BOTH
def test_clipping_accumulation_and_weights_as_in_one_process(spark, strategy):
    """79 rows on 3 ranks, 2 batches of at most 40 rows per step."""
    rows = 79
    data = table(rows)
    data["w"] = np.random.default_rng(2).random(rows)
    model = fit(
        spark.createDataFrame(data, "features array<float>, label long, w double"), batch=40, epochs=8, optimizer=PLAIN,
        strategy=strategy, accumulationSteps=2, maxGradNorm=0.2, weightCol="w",
    )  # fmt: skip
    features, labels = torch.tensor(np.stack(data["features"])), torch.tensor(data["label"].to_numpy())
    weights = torch.tensor((data["w"] / data["w"].mean()).to_numpy(np.float32))
    torch.manual_seed(5)
    module = Small()
    optimizer = PLAIN(module.parameters())
    clipped = 0
    for _ in range(8):
        optimizer.zero_grad()
        (torch.nn.functional.cross_entropy(module(features), labels, reduction="none") * weights).mean().backward()
        clipped += torch.nn.utils.clip_grad_norm_(module.parameters(), 0.2).item() > 0.2
        optimizer.step()
    assert clipped
    assert distance(model.module.state_dict(), module.state_dict()) <= 1e-5


@BOTH
@pytest.mark.slow
def test_weights_of_classes_and_ignored_labels_as_in_one_process(spark, strategy):
    """79 rows on 3 ranks, 4 batches of at most 20 per step; a label of 7 does not count."""
    rows = 79
    loss = torch.nn.CrossEntropyLoss(torch.linspace(0.1, 3.0, 10), ignore_index=7)
    model = fit(
        frame(spark, rows), loss=loss, batch=20, epochs=8, optimizer=PLAIN, strategy=strategy, accumulationSteps=4,
    )  # fmt: skip
    data = table(rows)
    features, labels = torch.tensor(np.stack(data["features"])), torch.tensor(data["label"].to_numpy())
    assert 0 < (labels == 7).sum() < rows
    torch.manual_seed(5)
    module = Small()
    optimizer = PLAIN(module.parameters())
    for _ in range(8):
        optimizer.zero_grad()
        loss(module(features), labels).backward()
        optimizer.step()
    assert distance(model.module.state_dict(), module.state_dict()) <= 1e-5
