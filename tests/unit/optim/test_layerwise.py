"""LARS and LAMB against their formulas, and as optimizers of torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.optim import LAMB, LARS
from sparkdl_comm.optim.parallel import GangRanks
from sparkdl_comm.strategies.registry import strategy_class
from sparkdl_comm.train.training_loop import TrainingLoop
from tests.unit.collective_helpers import conf
from tests.unit.ranks import Gathered, Rows, Sharded, train

STEPS = 6
SHAPES = ((3, 4), (5,), (2, 3, 2))


def values(seed: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in SHAPES]


def stepped(
    make: Callable[[Any], torch.optim.Optimizer], steps: Sequence[int] = range(STEPS), **more: Any
) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    """What parameters become in these steps, each with gradients of its own; and their optimizer."""
    params = [nn.Parameter(value) for value in values(100, **more)]
    optimizer = make(params)
    for step in steps:
        for parameter, gradient in zip(params, values(step, **more), strict=True):
            parameter.grad = gradient
        optimizer.step()
    return [parameter.detach() for parameter in params], optimizer


def length(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def lars_by_formula(
    lr: float, momentum: float, decay: float, trust: float, eps: float, nesterov: bool
) -> list[list[float]]:
    """One number at a time."""
    found = []
    for layer, start in enumerate(values(100)):
        w = start.flatten().tolist()
        v = [0.0] * len(w)
        for step in range(STEPS):
            g = values(step)[layer].flatten().tolist()
            ratio = trust * length(w) / (length(g) + decay * length(w) + eps)
            d = [ratio * (g[i] + decay * w[i]) for i in range(len(w))]
            v = [momentum * v[i] + d[i] for i in range(len(w))]
            w = [w[i] - lr * (d[i] + momentum * v[i] if nesterov else v[i]) for i in range(len(w))]
        found.append(w)
    return found


def lamb_by_formula(lr: float, betas: tuple[float, float], decay: float, eps: float) -> list[list[float]]:
    found = []
    for layer, start in enumerate(values(100)):
        w = start.flatten().tolist()
        m, v = [0.0] * len(w), [0.0] * len(w)
        for step in range(STEPS):
            g = values(step)[layer].flatten().tolist()
            m = [betas[0] * m[i] + (1 - betas[0]) * g[i] for i in range(len(w))]
            v = [betas[1] * v[i] + (1 - betas[1]) * g[i] ** 2 for i in range(len(w))]
            first, second = (1 - beta ** (step + 1) for beta in betas)
            u = [m[i] / first / (math.sqrt(v[i] / second) + eps) + decay * w[i] for i in range(len(w))]
            ratio = length(w) / length(u)
            w = [w[i] - lr * ratio * u[i] for i in range(len(w))]
        found.append(w)
    return found


def assert_like(found: Sequence[torch.Tensor], expected: Sequence[list[float]]) -> None:
    for one, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(one.flatten(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_lars_is_its_formula(momentum: float, nesterov: bool) -> None:
    options = {"lr": 0.5, "momentum": momentum, "eps": 0.1, "nesterov": nesterov}
    found, _ = stepped(lambda params: LARS(params, weight_decay=0.3, trust_coefficient=0.2, **options))
    assert_like(found, lars_by_formula(decay=0.3, trust=0.2, **options))


def test_lamb_is_its_formula() -> None:
    options: dict[str, Any] = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 0.1}
    found, _ = stepped(lambda params: LAMB(params, weight_decay=0.3, **options))
    assert_like(found, lamb_by_formula(decay=0.3, **options))


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_lars_with_ratio_1_is_sgd(options: dict[str, Any], decay: float) -> None:
    """Also its bits, in float32."""
    mine, _ = stepped(lambda p: LARS(p, 0.1, weight_decay=decay, adapt=False, **options), dtype=torch.float32)
    torchs, _ = stepped(lambda p: torch.optim.SGD(p, 0.1, weight_decay=decay, **options), dtype=torch.float32)
    assert all(torch.equal(one, other) for one, other in zip(mine, torchs, strict=True))


def test_lamb_with_ratio_1_is_adamw() -> None:
    options: dict[str, Any] = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.3}
    mine, _ = stepped(lambda params: LAMB(params, adapt=False, **options))
    torchs, _ = stepped(lambda params: torch.optim.AdamW(params, **options))
    torch.testing.assert_close(mine, torchs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("weights", "gradients"), [(0.0, 1.0), (1.0, 0.0)])
def test_a_norm_of_zero_says_nothing(weights: float, gradients: float) -> None:
    parameter = nn.Parameter(torch.full((4,), weights))
    parameter.grad = torch.full((4,), gradients)
    LARS([parameter], lr=0.5, weight_decay=0.25).step()
    assert torch.equal(parameter.detach(), torch.full((4,), weights - 0.5 * (gradients + 0.25 * weights)))
    # LAMB's is that of the whole direction, which is 0 only without decay.
    parameter = nn.Parameter(torch.full((4,), weights))
    parameter.grad = torch.full((4,), gradients)
    LAMB([parameter], lr=0.5, eps=0.0 if gradients else 1.0, weight_decay=0.0).step()
    assert torch.allclose(parameter.detach(), torch.full((4,), weights - 0.5 * gradients))


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_groups_have_options_of_their_own(kind: Any) -> None:
    fast, slow = {"lr": 0.5, "weight_decay": 0.1}, {"lr": 0.01, "weight_decay": 0.0, "adapt": False}
    both, _ = stepped(lambda p: kind([{"params": p[:1], **fast}, {"params": p[1:], **slow}], lr=9.0))
    first, _ = stepped(lambda p: kind(p, **fast))
    second, _ = stepped(lambda p: kind(p, **slow))
    assert all(torch.equal(one, other) for one, other in zip(both, [first[0], *second[1:]], strict=True))


@pytest.mark.parametrize("make", [lambda p: LARS(p, 0.1, 0.9), LAMB])
def test_a_state_that_is_loaded_goes_on(make: Any) -> None:
    whole, _ = stepped(make)
    half, optimizer = stepped(make, range(3))
    params = [nn.Parameter(value.clone()) for value in half]
    rest = make(params)
    rest.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(3, STEPS):
        for parameter, gradient in zip(params, values(step), strict=True):
            parameter.grad = gradient
        rest.step()
    assert all(torch.equal(one, other.detach()) for one, other in zip(whole, params, strict=True))


@pytest.mark.parametrize("make", [lambda p: LARS(p, 0.1, 0.9, weight_decay=0.5), LAMB])
def test_parameters_without_a_gradient_are_left_alone(make: Any) -> None:
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = make([used, unused])
    used.grad = torch.ones(3)
    optimizer.step()
    assert not torch.equal(used.detach(), torch.ones(3))
    assert torch.equal(unused.detach(), torch.ones(3))
    assert unused not in optimizer.state


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_sparse_gradients_are_refused_before_anything_moves(kind: Any) -> None:
    dense, weight = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4, 2))
    optimizer = kind([dense, weight], lr=0.1)
    dense.grad = torch.ones(3)
    nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()
    with pytest.raises(
        ModelError, match=rf"{kind.__name__} takes no sparse gradients, .* shape \[4, 2\].*sparse=False"
    ):
        optimizer.step()
    assert torch.equal(dense.detach(), torch.ones(3))
    assert not optimizer.state


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_a_closure_computes_the_gradients(kind: Any) -> None:
    parameter = nn.Parameter(torch.ones(3))

    def closure() -> torch.Tensor:
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert kind([parameter], lr=0.1).step(closure).item() == 3.0
    assert parameter.detach().norm() < math.sqrt(3)


def test_a_schedule_changes_the_rate() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = LARS([parameter], lr=0.5, trust_coefficient=1.0, eps=0.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for expected in (0.5, 0.375):
        parameter.grad = torch.full((3,), 7.0)
        optimizer.step()
        schedule.step()
        torch.testing.assert_close(parameter.detach(), torch.full((3,), expected))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (LARS, {"lr": -0.1}, "lr=-0.1: must be a number that is not negative"),
        (LARS, {"lr": 0.1, "momentum": math.nan}, "momentum=nan"),
        (LARS, {"lr": 0.1, "trust_coefficient": -1}, "trust_coefficient=-1"),
        (LARS, {"lr": 0.1, "nesterov": True}, "nesterov=True: needs a momentum greater than 0"),
        (LARS, {"lr": 0.1, "adapt": "no"}, "adapt='no': must be True or False"),
        (LAMB, {"eps": -1.0}, "eps=-1.0"),
        (LAMB, {"betas": (0.9, 1.0)}, r"betas\[1\]=1.0: must be at least 0 and less than 1"),
        (LAMB, {"parallel": 3}, "parallel=3: must be True, False or a Communicator"),
    ],
)
def test_options_out_of_range(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfError, match=message):
        kind([nn.Parameter(torch.ones(1))], **options)


class Tiny(nn.Module):
    """Fewer elements than ranks: one of three has an empty shard."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x)


@pytest.mark.parametrize("strategy", [Gathered, Sharded])
@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_empty_shards(kind: Any, strategy: Any) -> None:
    random = torch.Generator().manual_seed(3)
    data = Rows(torch.randn(9, 1, generator=random), torch.randn(9, generator=random))
    loops = train(Tiny, data.cut(3, 3, 3), strategy=strategy, epochs=4, optimizer=lambda p: kind(p, lr=0.1))
    torch.manual_seed(5)
    module = Tiny()
    optimizer = kind(module.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        (module(data.features).squeeze(1) - data.targets).square().mean().backward()
        optimizer.step()
    for loop in loops:
        torch.testing.assert_close(
            list(loop.model.module.parameters()), list(module.parameters()), rtol=1e-5, atol=1e-6
        )
        assert torch.equal(loop.model.values, loops[0].model.values)


@pytest.mark.parametrize(("parallel", "gathers"), [(False, 0), (True, 3)])
def test_norms_are_dealt_out_if_asked_for(parallel: bool, gathers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By strategies whose ranks all update everything; not where rank 0 updates alone."""
    calls = []
    gather = GangRanks.all_gather
    monkeypatch.setattr(GangRanks, "all_gather", lambda self, t: calls.append(self.rank) or gather(self, t))
    random = torch.Generator().manual_seed(3)
    data = Rows(torch.randn(9, 1, generator=random), torch.randn(9, generator=random))
    ends: list[list[TrainingLoop]] = []
    for settings in ({"strategy": "ring"}, {"strategy": "lp", "loop": "root"}):
        made = strategy_class(conf(**settings))
        optimizer = lambda p: LARS(p, lr=0.1, parallel=parallel)  # noqa: E731
        ends.append(train(Tiny, data.cut(4, 5), strategy=made, conf=settings, epochs=3, optimizer=optimizer))
        assert sorted(calls) == [0] * gathers + [1] * gathers, "one for each step"
    for loops in ends:
        assert torch.equal(loops[0].model.values, loops[1].model.values)
    torch.testing.assert_close(ends[0][0].model.values, ends[1][0].model.values)
