"""No parameter is used before it is there: until a layer is needed, its values are NaN."""

import pytest
import torch
from torch import nn

from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.wait_on_use import WaitOnUse, can_wait_on_use
from tests.integration.nets import Backwards, Odd, Tangled


class Recurrent(nn.Module):
    """An LSTM has its weights in lists; the loss has a penalty on a weight; an extension's function sees raw tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(7, 9, num_layers=2)
        self.head = nn.Linear(9, 10)
        self.foreign = Foreign()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out, _ = self.lstm(rows.view(-1, 4, 7))
        return self.foreign(self.head(out[:, -1])) + torch.cat([self.head.weight.flatten()]).square().sum()


class Foreign(nn.Module):
    """Reads memory behind torch's back, as an extension in C does."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.full((1,), 3.0))
        self._address = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        import ctypes

        return rows + ctypes.c_float.from_address(self._address).value


class Arrivals:
    """Plays the network: a layer's values are NaN until it is needed; then it and all before it are there."""

    def __init__(self, module: nn.Module) -> None:
        self.model = FlatModel(module)
        self.model.bind(torch.empty(self.model.count), torch.empty(self.model.count))
        self.values = self.model.values.clone()
        self.model.values.fill_(torch.nan)
        self.needed: list[int] = []
        self.waits = WaitOnUse(self.model, self.need, lambda: self.arrived == len(self.model.layers))
        self.arrived = 0

    def need(self, layer: int) -> None:
        if layer >= self.arrived:
            self.needed.append(layer)
            stretch = self.model.stretch(range(layer + 1))
            self.model.values[stretch] = self.values[stretch]
            self.arrived = layer + 1


@pytest.mark.parametrize("net", [Tangled, Odd, Backwards, Recurrent])
def test_what_is_used_is_there(net):
    torch.manual_seed(3)
    module = net()
    rows = torch.ones(6, 28)
    if isinstance(module, Recurrent):
        module.foreign._address = module.foreign.shift.data_ptr()
    expected = module(rows)
    network = Arrivals(module)
    if isinstance(module, Recurrent):
        module.foreign._address = module.foreign.shift.data_ptr()
    with network.waits:
        output = module(rows)
    assert torch.equal(output, expected)
    assert network.needed == sorted(set(network.needed)), "every wait is for a later layer"


def test_layers_are_awaited_one_after_another_and_only_when_they_are_used():
    network = Arrivals(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))))
    module = network.model.module
    seen = []
    for number, layer in enumerate(module):
        layer.register_forward_hook(lambda *_, number=number: seen.append((number, list(network.needed))))
    with network.waits:
        assert module[2].weight.shape == (4, 4)
        assert module[2].weight.requires_grad
        assert network.needed == [], "a shape is no value"
        module(torch.ones(2, 4))
    assert seen == [(0, [0]), (1, [0, 1]), (2, [0, 1, 2])]


@pytest.mark.slow
def test_compiled_modules_are_known():
    assert can_wait_on_use(nn.Linear(2, 2))
    assert not can_wait_on_use(nn.Sequential(torch.compile(nn.Linear(2, 2))))
    assert not can_wait_on_use(nn.Sequential(torch.jit.script(nn.Linear(2, 2))))
    compiled = nn.Linear(2, 2)
    compiled.compile()
    assert not can_wait_on_use(nn.Sequential(compiled))
