"""Parameters and gradients as views of flat vectors."""

import torch
from torch import nn

from sparkdl_comm.train.flat import FlatModel


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
