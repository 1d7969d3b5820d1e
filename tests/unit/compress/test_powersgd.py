"""PowerSGD: gradients as products of two narrow matrices, in the real loop and alone."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.compress.powersgd import orthonormal
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError, PersistenceError
from sparkdl_comm.strategies.registry import strategy_class
from tests.unit.compression_helpers import (
    Sometimes,
    assert_training_goes_on,
    assert_what_no_rank_used_stays,
    net,
    table,
    trained,
    values,
    with_skipped_steps,
)

RING = {"strategy": "ring", "bucket": 100}


class OneMatrix(nn.Module):
    """Its gradient does not depend on it, and has as many ranks as there are rows at most."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 9))
        self.register_buffer("out", torch.randn(9, 1, generator=torch.Generator().manual_seed(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight @ self.out


def product(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output * target).mean()


def test_columns_are_made_orthonormal_and_none_is_nan() -> None:
    columns = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    columns[:, 2] = 0
    found = orthonormal(columns.clone())
    torch.testing.assert_close(found.T @ found, torch.diag(torch.tensor([1.0, 1.0, 0.0, 1.0])), rtol=1e-5, atol=1e-5)
    kept = found @ (found.T @ columns)
    torch.testing.assert_close(kept, columns, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_that_rank_arrives_whole() -> None:
    """That of OneMatrix is a column times a row."""
    dense = values(trained(OneMatrix, {"strategy": "ring"}, 1, loss=product))
    low = values(trained(OneMatrix, {**RING, "compression": "powersgd:1"}, 1, loss=product))
    assert dense.abs().max() > 1e-3
    torch.testing.assert_close(low, dense, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [net, Sometimes])
def test_small_matrices_travel_as_they_are(make: Any) -> None:
    adam = functools.partial(torch.optim.AdamW, lr=0.05, weight_decay=0.5)
    dense = values(trained(make, {"strategy": "ring"}, optimizer=adam))
    low = values(trained(make, {**RING, "compression": "powersgd:8"}, optimizer=adam))
    torch.testing.assert_close(low, dense, rtol=1e-5, atol=1e-6)


def test_what_is_left_out_arrives_with_a_dense_step() -> None:
    class Full(nn.Module):
        """A matrix with a constant gradient of full rank."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(6, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * torch.tanh(x @ torch.ones(6, 6).triu()) @ self.weight).sum(1, keepdim=True) + (
                x @ (self.weight * torch.eye(6)) * x
            ).sum(1, keepdim=True)

    settings = {**RING, "compression": "powersgd:1"}
    dense = values(trained(Full, {"strategy": "ring"}, 4, loss=product))
    low = values(trained(Full, {**settings, "compression_schedule": "steps:1-3"}, 3, loss=product))
    after = values(trained(Full, {**settings, "compression_schedule": "steps:1-3"}, 4, loss=product))
    torch.testing.assert_close(after, dense, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(low, dense * 3 / 4, rtol=1e-2)


def test_it_trains() -> None:
    ranks = [
        [loop.progress.history for loop in trained(net, {**RING, "compression": given}, 30)]
        for given in ("powersgd:8", "powersgd:1")
    ]
    dense, low = ([sum(row["loss"] for row in rows) for rows in zip(*given, strict=True)] for given in ranks)
    assert low[-1] < (low[0] + dense[-1]) / 2
    assert low != dense


def test_what_no_rank_used_stays_as_it_is() -> None:
    assert_what_no_rank_used_stays({**RING, "compression": "powersgd:1"})


def test_training_goes_on_from_a_checkpoint() -> None:
    assert_training_goes_on({**RING, "compression": "powersgd:1"}, "factors")


@pytest.mark.parametrize(("saved", "loading"), [(1, 2), (2, 1), (1, 8)], ids=str)
def test_a_checkpoint_of_another_rank_is_refused(saved: int, loading: int) -> None:
    """With rank 8 the parameter travels whole, and has no factors."""
    first, second = (
        trained(OneMatrix, {**RING, "compression": f"powersgd:{rank}"}, 1, loss=product)[0].strategy
        for rank in (saved, loading)
    )
    with pytest.raises(PersistenceError, match=r"another spark\.sparkdl\.comm\.compression"):
        second.load_state(first.state())


def test_steps_that_fp16_skips_leave_everything_as_it_was() -> None:
    for loop in with_skipped_steps({**RING, "compression": "powersgd:1"}):
        state = loop.strategy.state()
        assert all(one.isfinite().all() for kind in ("left", "factors") for one in state[kind].values())


def test_bytes_are_counted() -> None:
    """Of 4 ranks by a ring, each gets 3/4 of a vector twice."""
    assert len(table().cut(7, 5, 6, 6)) == 4
    low = trained(OneMatrix, {**RING, "compression": "powersgd:1"}, 1, loss=product)[0].strategy.watch.bytes
    sent = (6 + 1) + 9  # P and a flag, Q
    assert sum(low.values()) == pytest.approx(4 * sent * 2 * 3 / 4, abs=4 * 4)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"strategy": "ring", "compression_momentum": 0.9}, r"compression\.momentum is not for powersgd"),
        ({"strategy": "ring", "compression_values": "fp16"}, r"compression\.values is not for powersgd"),
        ({"strategy": "ring", "compression_schedule": "warmup:10"}, r"schedule=warmup:10: powersgd has no density"),
        ({"strategy": "ps"}, r"compression=powersgd:2: strategy ps pushes the largest"),
        ({"strategy": "hitopk"}, r"compression=powersgd:2: strategy hitopk sends the largest elements"),
    ],
)
def test_what_it_cannot_do_is_refused_on_the_driver(settings: dict[str, Any], complaint: str) -> None:
    conf = CommConf.from_mapping({}, compression="powersgd:2", **settings)
    with pytest.raises(ConfError, match=complaint):
        strategy_class(conf).check(conf, 4)


def test_algorithms_that_only_all_reduce_can() -> None:
    conf = CommConf.from_mapping({}, strategy="lp", compression="powersgd:2")
    strategy_class(conf).check(conf, 4)
