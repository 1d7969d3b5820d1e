"""The training loop in half precision, and losses and gradients that are not finite."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.errors import NonFiniteLossError
from tests.unit.loop_helpers import BOTH, PARTS, ROWS, Net, momentum, reference, table
from tests.unit.ranks import train


@BOTH
def test_fp16_skips_on_overflow_and_ends_like_fp32(strategy: Any) -> None:
    made: list[Any] = []
    loops = train(
        Net, table().cut(*PARTS), strategy=strategy, epochs=5, precision="fp16", prepare=lambda loop: made.append(
            setattr(loop._rule, "scale", 2.0**127)
        ), optimizer=momentum,
    )  # fmt: skip
    scales = {loop._rule.scale for loop in loops}
    assert len(scales) == 1, "all ranks skip the same steps"
    assert scales.pop() < 2.0**127, "the first steps overflow"


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast(precision: str, dtype: torch.dtype) -> None:
    seen = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append(output.dtype)
        return ((output.float() - target) ** 2).mean()

    loops = train(Net, table().cut(ROWS), epochs=5, precision=precision, optimizer=momentum, loss=loss)
    assert set(seen) == {dtype}
    expected = nn.utils.parameters_to_vector(reference(Net, table(), 5).parameters())
    got = nn.utils.parameters_to_vector(loops[0].model.module.parameters())
    assert 1e-6 < (got - expected).norm() / expected.norm() < 2e-2


@BOTH
def test_an_infinite_loss_in_fp16_is_a_step_that_is_skipped(strategy: Any) -> None:
    calls = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(0)
        return (output.float() - target).square().mean() * (torch.inf if len(calls) == 1 else 1.0)

    loops = train(Net, table().cut(24), strategy=strategy, epochs=4, loss=loss, precision="fp16")
    history = loops[0].progress.history
    assert [row["skipped_steps"] for row in history] == [1, 0, 0, 0]
    assert math.isnan(history[0]["loss"])
    assert all(math.isfinite(row["loss"]) for row in history[1:])


def test_a_loss_that_stays_infinite_in_fp16() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.mean() * torch.inf

    with pytest.raises(
        NonFiniteLossError, match="at step 17, though the loss is scaled down to 1 .precision='fp16': try bf16"
    ):
        train(Net, table().cut(*PARTS), epochs=30, loss=loss, precision="fp16")


def test_a_gradient_that_is_not_finite_is_named() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(output - output.detach()).mean()  # 0, with an infinite slope

    with pytest.raises(NonFiniteLossError, match="the gradient's norm became .* at step 1"):
        train(Net, table().cut(ROWS), max_grad_norm=1.0, loss=loss)


@BOTH
def test_a_gradient_that_spoils_the_last_step(strategy: Any) -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(output - output.detach()).mean()  # 0, with an infinite slope, and no step after it to notice

    with pytest.raises(
        NonFiniteLossError, match="after step 1 parameter 0.bias has values that are NaN or infinite"
    ) as caught:
        train(Net, table().cut(*PARTS), strategy=strategy, epochs=1, loss=loss)
    assert caught.value.step == 1


def test_infinite_parameters_that_training_did_not_make() -> None:
    class Masked(Net):
        def __init__(self) -> None:
            super().__init__()
            self.mask = nn.Parameter(torch.tensor([0.0, -torch.inf]))

    assert train(Masked, table().cut(*PARTS), epochs=1)
