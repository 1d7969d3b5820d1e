"""Tensors that share memory: refused where training would tear them apart, with the names of both."""

from typing import Any

import pytest
import torch
from pyspark import cloudpickle
from torch import nn

from sparkdl_comm.errors import ModelError
from sparkdl_comm.job.shipping import pickle_module
from sparkdl_comm.ml.components import check_model, make_loss
from sparkdl_comm.space import module_state
from tests.unit.job.test_trained_module import trained_module
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


def two_buffers(net: Pair) -> None:
    """In torch, the head follows the ring that a forward pass changes. Each of them is sent by itself."""
    net.register_buffer("ring", torch.zeros(4))
    net.register_buffer("head", net.ring[:1], persistent=False)


def side_by_side_buffers(net: Pair) -> None:
    net.left, net.right = (nn.Parameter(part, requires_grad=False) for part in torch.randn(6, 8).chunk(2, 1))


def one_buffer_twice(net: Pair) -> None:
    net.register_buffer("one", torch.ones(3))
    net.encoder.register_buffer("one", net.one)


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
        (frozen_pair, r"buffer one and parameter other share memory, and would come apart"),
        (two_buffers, r"buffer ring and buffer head share memory, and would come apart"),
    ],
)
def test_refused_before_any_executor_is_touched(change: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        check_model(made(change))


@pytest.mark.parametrize("change", [two_buffers, one_row])
def test_refused_when_forward_makes_them(change: Any) -> None:
    class Late(Pair):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(list(self.buffers())) == 0:
                change(self)
            return super().forward(x)

    steps: list[int] = []
    with pytest.raises(ModelError, match="shares? memory"):
        train(
            Late,
            table().cut(*PARTS),
            prepare=lambda loop: setattr(loop, "after_step", lambda loop: steps.append(loop.progress.step)),
        )
    assert not steps


def test_a_loss_whose_buffers_would_come_apart_is_refused() -> None:
    loss = nn.MSELoss()
    loss.register_buffer("ring", torch.zeros(4))
    assert make_loss(loss) is loss
    loss.register_buffer("head", loss.ring[:1])
    with pytest.raises(ModelError, match="loss: buffer ring and buffer head share memory"):
        make_loss(loss)


@pytest.mark.parametrize("change", [side_by_side, side_by_side_buffers, tied, one_buffer_twice])
def test_what_does_not_come_apart(change: Any) -> None:
    """An instance is pickled, and the driver's module gets each tensor by itself."""
    given = made(change)
    assert check_model(given) is given
    arrived = cloudpickle.loads(pickle_module(given, None))
    sent = module_state.pack_state(arrived, lambda text: None)
    trained = trained_module(given, {name: tensor.detach().clone() for name, tensor in sent.items()})
    for module in (arrived, trained):
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data.add_(1)
    for name, tensor in given.state_dict().items():
        for module in (arrived, trained):
            assert torch.equal(module.state_dict()[name], tensor + 1), name


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


@pytest.mark.parametrize(
    ("late", "complaint"),
    [
        (1, r"parameters encoder\.weight and decoder\.weight share memory"),
        (2, r"forward changes trainable parameters in place, or their \.data"),
    ],
)
def test_parameters_whose_data_forward_replaces(late: int, complaint: str) -> None:
    class Tying(Pair):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls >= late:
                self.decoder.weight.data = self.encoder.weight.data.t()
            return super().forward(x)

    with pytest.raises(ModelError, match=complaint):
        train(Tying, table().cut(*PARTS))
