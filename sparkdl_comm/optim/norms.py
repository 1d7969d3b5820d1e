"""L2 norms of whole parameters, for optimizers that need them (``layerwise.py``): who computes them, and of what."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from sparkdl_comm.optim.parallel import Alone, Ranks, parallel

#: Elements of a row. A float32 sum of more loses digits, and torch splits a longer one between its threads.
_ROW = 1 << 14


def norm(tensor: torch.Tensor) -> torch.Tensor:
    """The L2 norm, ``[]``, float32 or float64, of a tensor of any shape.

    The bits do not depend on how many threads torch has. Of two million float32 it is right to 1e-7, where torch's, one sum
    on the CPU, is to 4e-5.
    """
    flat, dtype = tensor.reshape(-1), torch.promote_types(tensor.dtype, torch.float32)
    if flat.numel() <= _ROW:
        return torch.linalg.vector_norm(flat, dtype=dtype)
    rows = flat[: flat.numel() // _ROW * _ROW].view(-1, _ROW)
    rest = torch.linalg.vector_norm(flat[rows.numel() :], dtype=dtype)
    parts = torch.cat([torch.linalg.vector_norm(rows, dim=1, dtype=dtype), rest.view(1)])
    return torch.linalg.vector_norm(parts, dtype=torch.float64)


class Norms(ABC):
    """All ranks call it once per step of their optimizers, also those that have nothing to ask for."""

    @abstractmethod
    def __call__(self, parameters: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[tuple[float, float]]:
        """The L2 norms of each parameter as a whole, and of what of the same form belongs to it, such as its gradient.

        ``parameters``: of the optimizer, each once. ``others``: one for each. The same bits on all ranks, if they have the
        same parameters.
        """


class DealtNorms(Norms):
    """Every rank has all parameters whole: each computes its part of the norms (:func:`~.parallel.parallel`)."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __call__(self, parameters: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[tuple[float, float]]:
        found = parallel(norm, [*parameters, *others], self._ranks, dtype=torch.float64).tolist()
        return list(zip(found[: len(parameters)], found[len(parameters) :], strict=True))


#: A rank computes all norms itself.
LOCAL: Norms = DealtNorms(Alone())


class StripedNorms(Norms):
    """Parameters lie in stripes over the ranks: the squares of their norms are added up, in the order of the ranks. One
    all-gather of 16 bytes for each parameter of the model.

    :param numbers: of the whole parameter that each of the optimizer's, by ``id``, is a stripe of.
    :param count: of the model's parameters.
    """

    def __init__(self, numbers: Mapping[int, int], count: int, ranks: Ranks) -> None:
        self._numbers, self._count, self._ranks = numbers, count, ranks

    def __call__(self, parameters: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[tuple[float, float]]:
        numbers = torch.tensor([self._numbers[id(parameter)] for parameter in parameters], dtype=torch.int64)
        squares = torch.zeros((self._count, 2), dtype=torch.float64)
        for column, tensors in enumerate((parameters, others)):
            if tensors:
                own = torch.stack([norm(tensor) for tensor in tensors]).cpu().double().square()
                squares[:, column].index_add_(0, numbers, own)
        first, *rest = self._ranks.all_gather(squares)
        total = first.clone()
        for part in rest:
            total += part
        return [(one, other) for one, other in total[numbers].sqrt().tolist()]
