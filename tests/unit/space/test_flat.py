"""Parameters and gradients as views of flat vectors."""

import gc
import weakref

import torch
from torch import nn

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
