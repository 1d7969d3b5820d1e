"""Which optimizers may update stripes of tensors: those of torch by class, others by a trial."""

import functools
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ModelError
from sparkdl_comm.optim import LAMB, LARS, elementwise
from sparkdl_comm.optim.optimizer import Optimization, OptimizerMaker
from sparkdl_comm.optim.parallel import SingleRank
from sparkdl_comm.optim.shard import Shard
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.registry import strategy_class
from tests.optimizers import Blended, GlobalNorm, Lars, Mine, Odd
from tests.unit.ranks import Rows, train


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))


def shard(optimizer: Any, make: Any = Net, groups: Any = None) -> Shard:
    """The first of two ranks', as strategy ps makes it."""
    model = FlatModel(make())
    model.bind(torch.empty(model.count), torch.zeros(model.count))
    owned = [(0, model.values[: model.count // 2])]
    return Shard(model, owned, model.gradients, OptimizerMaker(model, Optimization(optimizer, groups)), SingleRank())


def ndim_decay(params: Any) -> torch.optim.Optimizer:
    params = list(params)
    matrices, others = [p for p in params if p.dim() > 1], [p for p in params if p.dim() <= 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}])


def marked(params: Any) -> torch.optim.Optimizer:
    params = list(params)
    slow = [p for p in params if hasattr(p, "slow")]
    rest = [p for p in params if not hasattr(p, "slow")]
    return torch.optim.SGD([{"params": group, "lr": lr} for group, lr in ((slow, 1e-3), (rest, 0.1)) if group])


def marked_net() -> nn.Module:
    net = Net()
    net[0].weight.slow = True
    return net


def flag(module: nn.Module) -> list[dict[str, Any]]:
    """Only the second group is scaled by norms."""
    return [{"params": module[0].parameters(), "scaled": False}, {"params": module[2].parameters(), "scaled": True}]


NOT_ELEMENTWISE = [
    Lars,
    functools.partial(Lars, lr=1e-6),
    functools.partial(Lars, lr=0.0),
    GlobalNorm,
    ndim_decay,
    Blended,
    lambda params: Lars(params, lr=0.1),
]


@pytest.mark.parametrize("optimizer", NOT_ELEMENTWISE)
def test_refused_on_the_driver(optimizer: Any) -> None:
    with pytest.raises(ModelError, match=r"optimizer \w+ is not elementwise: .*Set ring without that loop"):
        elementwise.check_on_driver(Net(), Optimization(optimizer))


@pytest.mark.parametrize("optimizer", NOT_ELEMENTWISE)
def test_refused_by_ranks_before_the_first_step(optimizer: Any) -> None:
    with pytest.raises(ModelError, match="is not elementwise"):
        shard(optimizer)


@pytest.mark.parametrize(
    ("optimizer", "complaint"),
    [
        (torch.optim.LBFGS, "LBFGS: its step wants a closure"),
        (functools.partial(torch.optim.LBFGS, lr=0.1), "LBFGS: its step wants a closure"),
        (lambda params: torch.optim.LBFGS(params), "LBFGS: its step wants a closure"),
        (torch.optim.SparseAdam, "SparseAdam takes sparse gradients"),
        *(
            (made, f"{name} is not elementwise")
            for name in ("Adafactor", "Muon")
            if (made := getattr(torch.optim, name, None))  # newer than the oldest torch
        ),
    ],
)
def test_those_of_torch_that_are_not(optimizer: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        elementwise.check_on_driver(Net(), Optimization(optimizer))
    with pytest.raises(ModelError, match=complaint):
        shard(optimizer)


@pytest.mark.parametrize("kind", elementwise._ELEMENTWISE)
def test_those_of_torch_that_are(kind: Any) -> None:
    """By class; and the trial of a function that makes one agrees."""
    for optimizer in (kind, functools.partial(kind, lr=0.01), lambda params: kind(params, lr=0.01)):
        elementwise.check_on_driver(Net(), Optimization(optimizer))
    assert shard(lambda params: kind(params, lr=0.01)).optimizer.param_groups[0]["lr"] == 0.01


def test_own_ones_that_are_elementwise_pass() -> None:
    net = Net()
    before = torch.get_rng_state()
    elementwise.check_on_driver(net, Optimization(Mine))
    assert isinstance(shard(Mine, lambda: net).optimizer, Mine)
    assert torch.equal(torch.get_rng_state(), before), "the generator is the user's"


def test_marks_of_parameters_that_stripes_do_not_have() -> None:
    with pytest.raises(ModelError, match="SGD is not elementwise"):
        elementwise.check_on_driver(marked_net(), Optimization(marked))
    with pytest.raises(ModelError, match="SGD is not elementwise"):
        shard(marked, marked_net)


def test_the_groups_of_the_model_count() -> None:
    with pytest.raises(ModelError, match="Lars is not elementwise"):
        elementwise.check_on_driver(Net(), Optimization(Lars, flag))
    off = lambda module: [{"params": module.parameters(), "scaled": False}]  # noqa: E731
    elementwise.check_on_driver(Net(), Optimization(Lars, off))
    assert shard(Lars, groups=off)
    with pytest.raises(ModelError, match="Lars is not elementwise"):
        shard(Lars, groups=flag)


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_those_that_are_given_norms(kind: Any) -> None:
    for optimizer in (
        functools.partial(kind, lr=0.01),
        lambda params: kind(params, lr=0.01),
        lambda params: kind(params, lr=0.01, parallel=True),
    ):
        elementwise.check_on_driver(Net(), Optimization(optimizer))
        assert shard(optimizer)
        maker = OptimizerMaker(FlatModel(Net()), Optimization(optimizer))
        assert maker.needs_all_gradients, "norms of all layers are gathered at once"
    flagged = lambda module: [  # noqa: E731
        {"params": module[0].parameters(), "adapt": False},
        {"params": module[2].parameters()},
    ]
    assert shard(lambda params: kind(params, lr=0.01), groups=flagged).optimizer.param_groups[0]["adapt"] is False


def test_optimizers_that_need_all_gradients() -> None:
    class Own(torch.optim.SGD):
        pass

    sgd, own = functools.partial(torch.optim.SGD, lr=0.1), functools.partial(Own, lr=0.1)
    for optimization, expected in (
        (Optimization(sgd), False),
        (Optimization(lambda params: torch.optim.Adagrad(params)), False),
        (Optimization(sgd, lambda module: [{"params": module.parameters(), "lr": 0.2}]), False),
        (Optimization(own), True),
        (Optimization(sgd, max_grad_norm=1.0), True),
        (Optimization(sgd, precision="fp16"), True),
    ):
        assert OptimizerMaker(FlatModel(Net()), optimization).needs_all_gradients is expected


def test_those_that_are_given_norms_and_take_others() -> None:
    class Own(LARS):
        def ratio(self, weights: float, direction: float, group: Any) -> float:
            return weights

    class Peeks(LARS):
        def move(self, parameter: Any, direction: Any, ratio: float, group: Any) -> None:
            super().move(parameter, direction, float(parameter.norm()), group)

    def biases_apart(params: Any) -> torch.optim.Optimizer:
        params = list(params)
        matrices, others = [p for p in params if p.dim() > 1], [p for p in params if p.dim() <= 1]
        return LARS([{"params": matrices}, {"params": others, "adapt": False}], lr=0.1)

    assert shard(functools.partial(Own, lr=0.1))
    for optimizer in (functools.partial(Peeks, lr=0.1), biases_apart):
        with pytest.raises(ModelError, match="is not elementwise"):
            shard(optimizer)


def test_one_that_cannot_be_tried_out() -> None:
    complaint = "Odd fails on a few small tensors.*TypeError: no closure"
    with pytest.raises(ModelError, match=complaint):
        elementwise.check_on_driver(Net(), Optimization(Odd))
    with pytest.raises(ModelError, match=complaint):
        shard(Odd)


def test_large_models_are_not_copied() -> None:
    net = nn.Module()
    net.weight = nn.Parameter(torch.empty(1 << 14, 1 << 14))  # 1 GiB that nobody touches
    before = psutil.Process().memory_info().rss
    with pytest.raises(ModelError, match=r"Lars is not elementwise: a tensor of shape \[128, 128\]"):
        elementwise.check_on_driver(net, Optimization(Lars))
    assert psutil.Process().memory_info().rss - before < 1 << 28


def test_the_advice_is_true() -> None:
    """Strategy ring gives an optimizer whole tensors: it ends as in one process."""
    random = torch.Generator().manual_seed(3)
    data = Rows(torch.randn(24, 6, generator=random), torch.randn(24, 1, generator=random))
    ring = strategy_class(CommConf.from_mapping({}, strategy="ring"))
    loops = train(Net, data.cut(11, 13), strategy=ring, epochs=4, optimizer=Lars)
    torch.manual_seed(5)
    module = Net()
    optimizer = Lars(module.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.mse_loss(module(data.features), data.targets).backward()
        optimizer.step()
    for loop in loops:
        for got, expected in zip(loop.model.module.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
