"""Parameters and gradients as views of flat vectors."""

import gc
import weakref

import pytest
import torch
from torch import nn

from sparkdl_comm.errors import ModelError
from sparkdl_comm.ml.components import check_model, make_loss
from sparkdl_comm.space.flat import FlatModel


def test_gradients_of_a_sparse_embedding_are_collected_and_add_up():
    torch.manual_seed(1)
    module, twin = nn.EmbeddingBag(7, 3, sparse=True), nn.EmbeddingBag(7, 3)
    twin.load_state_dict(module.state_dict())
    flat = FlatModel(module)
    flat.bind(torch.empty(flat.count), torch.full((flat.count,), 9.0))
    flat.clear_gradients()
    for bags in (torch.tensor([[0, 1]]), torch.tensor([[1, 5]])):
        for net in (module, twin):
            net(bags).square().sum().backward()
    flat.complete_gradients()
    assert torch.allclose(flat.gradients.view(7, 3), twin.weight.grad)
    assert flat.gradients.abs().sum() > 0


def test_a_released_model_keeps_nothing_alive():
    flat = FlatModel(nn.Linear(3, 2))
    flat.bind(torch.empty(flat.count), torch.empty(flat.count))
    flat.module(torch.ones(1, 3)).sum().backward()
    flat.complete_gradients()
    flat.release()
    gone = weakref.ref(flat)
    del flat
    gc.collect()
    assert gone() is None


def frozen_and_lazy() -> nn.Module:
    layer = nn.LazyLinear(2, bias=False)
    layer.weight = nn.UninitializedParameter(requires_grad=False)
    return layer


LAZY = [
    (lambda: nn.LazyLinear(2), "parameter 1.weight"),
    (frozen_and_lazy, "parameter 1.weight"),
    (lambda: nn.LazyBatchNorm1d(affine=False), "buffer 1.running_mean"),
]


@pytest.mark.parametrize(("make", "name"), LAZY)
def test_what_has_no_shape_yet_is_refused(make, name):
    """Ranks would give it a shape, and the driver's module would not have it."""
    module = nn.Sequential(nn.Linear(2, 2), make())
    with pytest.raises(ModelError, match=f"{name} has no shape yet.*call the module on an example first"):
        check_model(module)
    module(torch.ones(3, 2))
    assert check_model(module) is module


@pytest.mark.parametrize(("make", "name"), LAZY[1:])
def test_a_loss_that_has_no_shape_yet_is_refused(make, name):
    class Loss(nn.Sequential):
        def forward(self, output, target):
            return super().forward(output - target).square().mean()

    with pytest.raises(ModelError, match=f"loss: {name} has no shape yet"):
        make_loss(Loss(nn.Identity(), make()))
