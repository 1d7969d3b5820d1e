"""What a strategy says of itself is what the training loop does."""

from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.conf import CommConf
from sparkdl_comm.conf.strategy import NamedStrategy
from sparkdl_comm.errors import ConfError
from sparkdl_comm.strategies.registry import strategy_class
from tests.unit.ranks import Gathered, Rows, train


class Averages(Gathered):
    """As DistributedDataParallel: the mean of the ranks' gradients, each of the mean over its own rows."""

    needs_global_mean = False

    def after_backward(self) -> None:
        super().after_backward()
        self._model.gradients /= 2  # the ranks that have rows


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_strategy_may_weigh_the_ranks_itself(accumulation: int) -> None:
    torch.manual_seed(1)
    rows = Rows(torch.randn(7, 3), torch.randn(7, 1))
    parts = rows.cut(5, 0, 2)
    twin = nn.Linear(3, 1)
    begin = {name: value.clone() for name, value in twin.state_dict().items()}
    losses = []
    for _ in range(2):
        means = [nn.functional.mse_loss(twin(part.features), part.targets) for part in parts if part.rows]
        losses.append(nn.functional.mse_loss(twin(rows.features), rows.targets).item())
        gradients = torch.autograd.grad(sum(means) / 2, list(twin.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient

    def make() -> nn.Module:
        module = nn.Linear(3, 1)
        module.load_state_dict(begin)
        return module

    loops = train(make, parts, strategy=Averages, epochs=2, accumulation_steps=accumulation)
    for loop in loops:
        torch.testing.assert_close(loop.model.module.state_dict(), twin.state_dict())
    found = [sum(loop.progress.history[epoch]["loss"] for loop in loops) for epoch in range(2)]
    assert found == pytest.approx(losses), "the history has the mean over all rows all the same"


def test_the_loop_refuses_a_strategy_without_common_steps() -> None:
    class AsynchronousStrategy(Gathered):
        is_synchronous = False

    rows: Any = Rows(torch.randn(4, 3), torch.randn(4, 1)).cut(2, 2)
    with pytest.raises(ConfError, match="strategy bml has no common steps"):
        train(lambda: nn.Linear(3, 1), rows, strategy=AsynchronousStrategy, conf={"strategy": "bml"})


@pytest.mark.parametrize("name", ["ring+decoupled", "ring+decoupled+ibatch", "ps+layerwise"])
def test_a_strategy_is_found_by_the_name_that_auto_lists(name: str) -> None:
    named = NamedStrategy.parse(name)
    fields = {field: text for field, text in vars(named).items() if text}
    found, expected = (strategy_class(CommConf.from_mapping({}, **each)) for each in ({"strategy": name}, fields))
    assert found.__name__ == expected.__name__
    assert (found.__name__ == "DecoupledAllReduce_ring") == (name == "ring+decoupled")


def test_an_unknown_strategy_names_the_nearest() -> None:
    for name in ("rnig", "rnig+decoupled"):
        with pytest.raises(ConfError, match=r"strategy 'rnig' is unknown: there are .*; did you mean ring\?"):
            strategy_class(CommConf.from_mapping({}, strategy=name))


@pytest.mark.parametrize(
    "name", ["ring", "ring+decoupled", "ring+decoupled+ibatch", "lp+root", "be+root-overlap", "ps"]
)
def test_summaries_name_the_loop(name: str) -> None:
    """As the name that one gives, whatever keys say of other strategies."""
    conf = CommConf.from_mapping({}, strategy=name)
    assert strategy_class(conf).full_name(conf) == name


def test_a_loop_of_collectives_is_not_in_the_name_of_others() -> None:
    conf = CommConf.from_mapping({}, strategy="ps", loop="decoupled")
    assert strategy_class(conf).full_name(conf) == "ps"
