"""Sparse gradients in the real loop, in threads over real sockets."""

from __future__ import annotations

import functools
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from sparkdl_comm.collectives.group import RankGroup
from sparkdl_comm.compress.feedback import Feedback
from sparkdl_comm.compress.hitopk import HiTopK
from sparkdl_comm.conf import CommConf
from sparkdl_comm.conf.compression import COMPRESSIONS
from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.gang.members import Rail
from sparkdl_comm.strategies.registry import strategy_class
from tests.slow import crossed, slow
from tests.unit.compression_helpers import (
    Sometimes,
    assert_training_goes_on,
    assert_what_no_rank_used_stays,
    net,
    trained,
    values,
    with_skipped_steps,
)
from tests.unit.ranks import Rows, train

WAYS = pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "ring"},
        {"strategy": "be", "bucket": 4},
        {"strategy": "lp", "bucket": 4, "block": 8},
        {"strategy": "hitopk", "topology": "hosts:2x2", "bucket": 4},
        {"strategy": "hitopk", "topology": "star:4", "bucket": 100},
        {"strategy": "hitopk", "topology": "hosts:1x4", "bucket": 100},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)


@WAYS
@pytest.mark.parametrize("make", [net, Sometimes])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.slow
def test_with_all_elements_it_is_what_dense_gradients_do(
    settings: dict[str, Any], make: Any, accumulation: int
) -> None:
    how = {
        "optimizer": functools.partial(torch.optim.AdamW, lr=0.05, weight_decay=0.5),
        "max_grad_norm": 1.0,
        "accumulation_steps": accumulation,
        "batch": 24 // accumulation,
    }
    dense = values(trained(make, {"strategy": "ring"}, **how))
    sparse = values(trained(make, {**settings, "compression": "topk:1"}, **how))
    torch.testing.assert_close(sparse, dense, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("compression", "strategy"),
    crossed(
        [f"{name}:0.1" for name in COMPRESSIONS],
        ["ring", "hitopk"],
        quick=[*((f"{name}:0.1", "ring") for name in COMPRESSIONS), ("mstopk:0.1", "hitopk")],
    ),
)
def test_a_tenth_of_the_elements_trains_too(compression: str, strategy: str) -> None:
    settings = {"strategy": strategy, "topology": "hosts:2x2"}
    losses = [
        [loop.progress.history for loop in trained(net, {**settings, "compression": given}, epochs=30)]
        for given in ("topk:1", compression)
    ]
    dense, sparse = ([sum(row["loss"] for row in rows) for rows in zip(*ranks, strict=True)] for ranks in losses)
    assert sparse[-1] < (sparse[0] + dense[-1]) / 2
    assert sparse != dense


@WAYS
def test_what_no_rank_used_stays_as_it_is(settings: dict[str, Any]) -> None:
    assert_what_no_rank_used_stays({**settings, "compression": "topk:0.2"})


@WAYS
@pytest.mark.parametrize("momentum", [0, 0.9])
@pytest.mark.slow
def test_training_goes_on_from_a_checkpoint(settings: dict[str, Any], momentum: float) -> None:
    settings = {**settings, "compression": "mstopk:0.1", "compression_momentum": momentum}
    assert_training_goes_on(settings, "left")


@pytest.mark.parametrize("strategy", ["ring", "hitopk"])
def test_random_selections_go_on_from_a_checkpoint(strategy: str) -> None:
    """All six gradients are equal, so that the generator alone decides which one of them `mstopk` selects."""
    rows = Rows(torch.ones(8, 6), torch.ones(8, 1)).cut(2, 2, 2, 2)
    settings = {
        "strategy": strategy,
        "topology": "hosts:2x2",
        "compression": "mstopk:0.2",
        "compression_feedback": False,
    }
    train_rows = functools.partial(
        train, Linear, rows, conf=settings, loss=product, strategy=strategy_class(CommConf.from_mapping({}, **settings))
    )
    kept: dict[int, Any] = {}
    whole = values(train_rows(epochs=8))
    half = values(train_rows(epochs=4, finish=lambda at: kept.update({at.strategy._gang.rank: at.state()})))
    begins = {
        "arrive": lambda spec, gang, model: model.load(0, half),
        "prepare": lambda at: at.load_state(kept[at.strategy._gang.rank]),
    }
    assert torch.equal(values(train_rows(epochs=8, **begins)), whole)


@pytest.mark.parametrize("values_as", [slow("bf16"), "fp16"])
def test_what_rounding_takes_is_not_lost(values_as: str) -> None:
    settings = {"strategy": "ring", "compression": "topk:1", "compression_values": values_as}
    dense = values(trained(net, {"strategy": "ring"}, 40))
    rounded = values(trained(net, settings, 40))
    assert not torch.equal(rounded, dense)
    torch.testing.assert_close(rounded, dense, rtol=2e-3, atol=2e-3)


class Linear(nn.Module):
    """Layer whose gradients do not depend on the parameters if ``product`` is the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).sum(1, keepdim=True)


def product(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output * target).mean()


@pytest.mark.parametrize("strategy", ["ring", "hitopk"])
def test_with_momentum_correction_what_was_left_out_has_the_learning_rate_of_its_step(strategy: str) -> None:
    """With plain SGD, and next to no momentum, all steps together do what dense ones do, though rates fall or are 0."""

    def rate(epoch: int) -> float:
        return (0.0, 1.0, 0.5, 0.1, 0.01, 0.0)[epoch]

    how = {"lr_scheduler": functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=rate), "loss": product}
    settings = {"strategy": strategy, "topology": "hosts:2x2", "compression": "topk:0.2", "compression_momentum": 1e-7}
    dense = values(trained(Linear, {"strategy": "ring"}, 5, **how))
    sparse = values(trained(Linear, {**settings, "compression_schedule": "steps:1-4"}, 5, **how))
    torch.testing.assert_close(sparse, dense, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strategy", ["ring", "hitopk"])
def test_after_sparse_steps_a_dense_one_carries_what_was_left_out(strategy: str) -> None:
    """With plain SGD a sum of gradients does what they do one by one, if they do not depend on the parameters."""
    settings = {"strategy": strategy, "compression": "topk:0.2", "topology": "hosts:2x2"}
    dense = values(trained(Linear, {"strategy": "ring"}, 4, loss=product))
    sparse = values(trained(Linear, {**settings, "compression_schedule": "steps:1-3"}, 3, loss=product))
    after = values(trained(Linear, {**settings, "compression_schedule": "epochs:1-3"}, 4, loss=product))
    torch.testing.assert_close(after, dense)
    assert not torch.allclose(sparse, dense * 3 / 4)


@pytest.mark.parametrize("strategy", ["ring", "hitopk"])
def test_of_dense_steps_only_the_first_has_more_to_do_than_all_reduces(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied: list[int] = []
    empty = Feedback.flush_into

    def told(feedback: Feedback, start: int, *given: Any) -> None:
        emptied.append(start)
        empty(feedback, start, *given)

    monkeypatch.setattr(Feedback, "flush_into", told)
    settings = {"strategy": strategy, "topology": "hosts:2x2", "compression": "topk:0.1"}
    values(trained(Sometimes, {**settings, "compression_schedule": "steps:1-3"}, 6))
    assert len(emptied) == 4, "one bucket on each rank"


@pytest.mark.parametrize("strategy", ["ring", "hitopk"])
@pytest.mark.parametrize("schedule", ["steps:100-", "steps:2-2", "steps:3-4"])
def test_dense_steps_have_the_momentum_that_sparse_ones_correct(strategy: str, schedule: str) -> None:
    """A sparse step with all elements clears the momentum, after which there is that of what came since."""

    first, last = CommConf.from_mapping({}, compression_schedule=schedule).compression.schedule.steps

    class Begun(torch.optim.SGD):
        """Its momentum begins anew after each sparse step."""

        steps = 0

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.steps += 1
            super().step(closure)
            if first <= self.steps <= last:
                self.state.clear()

    settings = {"strategy": strategy, "topology": "hosts:2x2", "compression": "topk:1", "compression_momentum": 0.9}
    sgd = functools.partial(torch.optim.SGD, lr=0.05)
    ours = values(trained(net, {**settings, "compression_schedule": schedule}, 6, optimizer=sgd))
    theirs = values(trained(net, {"strategy": "ring"}, 6, optimizer=functools.partial(Begun, lr=0.05, momentum=0.9)))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", ["ring", "hitopk"])
def test_without_feedback_what_is_left_out_is_lost(strategy: str) -> None:
    settings = {"strategy": strategy, "compression": "topk:0.2", "topology": "hosts:2x2"}
    kept, lost = (trained(net, {**settings, "compression_feedback": keeps}, 3) for keeps in (True, False))
    assert not torch.equal(values(kept), values(lost))
    for loops, some in ((kept, True), (lost, False)):
        left = [left for loop in loops for left in loop.strategy.state()["left"].values()]
        assert any(bool(one.any()) for one in left) == some


@pytest.mark.parametrize("strategy", ["ring", "hitopk"])
def test_a_timeline_has_selecting_and_adding_up(strategy: str) -> None:
    told: list[dict[str, Any]] = []

    def report(loop: Any) -> None:
        assert loop.strategy.trace is not None
        told.append(loop.strategy.trace.report(loop.strategy._gang, 20.0, 4))

    settings = {"strategy": strategy, "topology": "hosts:2x2", "compression": "topk:0.2", "timeline": 1}
    trained(net, settings, 2, finish=report)
    assert len(told) == 4
    for rank in told:
        [iteration] = rank["iterations"]
        compressing = [span for span in iteration["spans"] if span["name"] == "compress"]
        [forward] = [span for span in iteration["spans"] if span["name"] == "forward"]
        [waited] = [span for span in iteration["spans"] if span["name"] == "wait for push"]
        assert len(compressing) == (2 if strategy == "ring" else 3), "once it selects, and adds up each slot's part"
        for span in compressing:
            assert forward["end"] <= span["begin"] <= span["end"] <= waited["end"]


def test_momentum_of_what_is_lost_is_refused() -> None:
    conf = CommConf.from_mapping({}, strategy="ring", compression_momentum=0.9, compression_feedback=False)
    with pytest.raises(ConfError, match=r"momentum=0\.9 .*feedback=false"):
        strategy_class(conf)


@pytest.mark.parametrize("strategy", ["ring", "hitopk"])
def test_a_step_that_fp16_skips_leaves_what_was_left_out(strategy: str) -> None:
    for loop in with_skipped_steps({"strategy": strategy, "compression": "topk:0.3", "topology": "hosts:2x2"}):
        assert all(left.isfinite().all() for left in loop.strategy.state()["left"].values())


def test_bytes_are_counted() -> None:
    count = sum(parameter.numel() for parameter in net().parameters())
    dense = trained(net, {"strategy": "ring"}, 1)[0].strategy.watch.bytes
    sparse = trained(net, {"strategy": "ring", "compression": "topk:0.1"}, 1)[0].strategy.watch.bytes
    flags = 1  # of six parameters
    assert sparse == {"push": 3 * (round(count / 10) * (4 + 2) + flags), "pull": 0}
    assert sum(sparse.values()) < sum(dense.values()) / 2


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"strategy": "gloo"}, "compression=topk:0.1: strategy gloo .*by ps, bml, lp, ring.*hitopk"),
        ({"strategy": "lp", "loop": "root"}, "collective.loop=root "),
        ({"strategy": "ring", "loop": "decoupled"}, "collective.loop=decoupled "),
    ],
)
def test_strategies_that_send_whole_gradients_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfError, match=complaint):
        strategy_class(CommConf.from_mapping({}, **settings, compression="topk:0.1"))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"strategy": "mst"}, "compression=topk:0.1: strategy mst does no all_gather; bml, lp, ring"),
        ({"strategy": "hitopk", "rails": "eth1,eth2"}, "one NIC each, not 2 rails"),
    ],
)
def test_algorithms_that_cannot_are_refused_on_the_driver(settings: dict[str, Any], complaint: str) -> None:
    conf = CommConf.from_mapping({}, **settings, compression="topk:0.1")
    with pytest.raises(ConfError, match=complaint):
        strategy_class(conf).check(conf, 4)


def test_hosts_with_different_numbers_of_ranks_are_refused() -> None:
    """As soon as ranks know each other's hosts: the gang has nothing but members yet, through which nothing can travel."""
    rails = [(Rail(f"10.0.0.{host}", "10.0.0.0/24", 1),) for host in (1, 2, 1)]
    gang = SimpleNamespace(rank=0, world=3, members=[SimpleNamespace(rails=each) for each in rails])
    ranks, conf = RankGroup.of_gang(cast("Any", gang)), CommConf.from_mapping({}, strategy="hitopk")
    complaint = re.escape("not {'10.0.0.1': 2, '10.0.0.2': 1}. Change num_workers, executors or cores")
    with pytest.raises(ConfError, match=f"the same number of ranks on each host, {complaint}"):
        HiTopK(cast("Any", None), cast("Any", None), ranks, conf, torch.device("cpu"))


@pytest.mark.parametrize("settings", [{"strategy": "ring"}, {"strategy": "hitopk", "topology": "hosts:2x2"}])
def test_rows_of_sparse_embeddings_that_a_step_used(settings: dict[str, Any]) -> None:
    """Row 0 is used by nobody."""

    def words() -> nn.Module:
        return nn.Sequential(nn.Embedding(9, 2, sparse=True), nn.Flatten(), nn.Linear(2, 1))

    random = torch.Generator().manual_seed(3)
    rows = Rows(torch.randint(1, 9, (12, 1), generator=random), torch.randn(12, 1, generator=random))

    def after(**more: str) -> torch.Tensor:
        given = {**settings, **more}
        strategy = strategy_class(CommConf.from_mapping({}, **given))
        return values(train(words, rows.cut(3, 3, 3, 3), strategy=strategy, conf=given, epochs=4))

    dense = after() if settings["strategy"] == "ring" else after(strategy="ring")
    torch.testing.assert_close(after(compression="topk:1"), dense)


def test_row_updates_of_sparse_embeddings_are_refused() -> None:
    def words() -> nn.Module:
        return nn.Sequential(nn.Embedding(5, 1, sparse=True), nn.Flatten())

    parts = [Rows(torch.randint(0, 5, (4, 1)), torch.randn(4, 1)) for _ in range(2)]
    settings = {"strategy": "ring", "compression": "topk:0.1"}
    with pytest.raises(ModelError, match="SparseAdam .*sparse=False"):
        train(
            words, parts, strategy=strategy_class(CommConf.from_mapping({}, **settings)), conf=settings,
            optimizer=lambda params: torch.optim.SparseAdam(params, lr=0.1),
        )  # fmt: skip
