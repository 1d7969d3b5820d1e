"""Tensors that share memory: refused where training would tear them apart, with the names of both."""

from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.errors import ModelError
from sparkdl_comm.ml.components import check_model
from sparkdl_comm.space.flat import FlatModel
from tests.unit.ranks import train
from tests.unit.strategies.test_used_parameters import ALL, PARTS, assert_same, of, table


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4, bias=False), nn.Linear(4, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(torch.tanh(self.encoder(x))).sum(1, keepdim=True)


def transposed(net: Pair) -> None:
    net.decoder.weight.data = net.encoder.weight.data.t()


def frozen_transposed(net: Pair) -> None:
    transposed(net)
    net.decoder.requires_grad_(False)


def one_row(net: Pair) -> None:
    net.register_buffer("row", net.encoder.weight.detach()[1])


def as_bytes(net: Pair) -> None:
    net.register_buffer("row", net.encoder.weight.detach().view(torch.int16)[1])


def expanded(net: Pair) -> None:
    net.decoder.weight = nn.Parameter(torch.ones(6, 1).expand(6, 4))


def side_by_side(net: Pair) -> None:
    """Columns of one matrix in turns: none is another's."""
    both = torch.randn(6, 8)
    net.encoder.weight.data = both[:4, :6].clone()
    net.decoder.weight.data = both[:, ::2]
    net.register_buffer("odd", both[:, 1::2])


def tied(net: Pair) -> None:
    net.more = nn.Linear(6, 4, bias=False)
    net.more.weight = net.encoder.weight


def frozen_pair(net: Pair) -> None:
    net.register_buffer("one", torch.ones(3))
    net.other = nn.Parameter(net.one[1:], requires_grad=False)


def made(change: Any) -> Pair:
    net = Pair()
    change(net)
    return net


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (transposed, r"parameters encoder\.weight and decoder\.weight share memory .*Tie the Parameter itself"),
        (frozen_transposed, r"parameter decoder\.weight shares memory with the trained parameter encoder\.weight"),
        (one_row, r"buffer row shares memory with the trained parameter encoder\.weight"),
        (as_bytes, r"buffer row shares memory with the trained parameter encoder\.weight"),
        (expanded, r"elements of parameter decoder\.weight share memory with each other"),
    ],
)
def test_refused_before_any_executor_is_touched(change: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        check_model(made(change))


@pytest.mark.parametrize("change", [side_by_side, tied, frozen_pair])
def test_what_does_not_come_apart(change: Any) -> None:
    FlatModel(made(change))


@ALL
@pytest.mark.parametrize("change", [side_by_side, tied])
def test_it_trains_as_in_one_process(way: Any, change: Any) -> None:
    data = table()
    loops = train(lambda: made(change), data.cut(*PARTS), **of(way))
    torch.manual_seed(5)
    alone = made(change)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (alone(data.features).squeeze(1) - data.targets).square().mean().backward()
        optimizer.step()
    assert_same(loops, alone)


@pytest.mark.parametrize("late", [1, 2])
def test_parameters_whose_data_forward_replaces(late: int) -> None:
    class Tying(Pair):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls >= late:
                self.decoder.weight.data = self.encoder.weight.data.t()
            return super().forward(x)

    with pytest.raises(ModelError, match=r"forward changes trainable parameters in place, or their \.data"):
        train(Tying, table().cut(*PARTS))
