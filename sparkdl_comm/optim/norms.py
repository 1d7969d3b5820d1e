"""L2 norms of whole parameters, for optimizers that need them (``layerwise.py``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from sparkdl_comm.optim.parallel import Ranks, SingleRank, parallel

#: Elements per partial norm. A longer float32 sum loses digits, and torch splits it between its threads.
_CHUNK = 1 << 14


def norm(tensor: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of a tensor of any shape: a scalar, float32 or float64.

    Its bits do not depend on torch's number of threads. For two million float32 values its relative error is 1e-7;
    torch's norm, a single sum on the CPU, has 4e-5.
    """
    flat, dtype = tensor.reshape(-1), torch.promote_types(tensor.dtype, torch.float32)
    if flat.numel() <= _CHUNK:
        whole: torch.Tensor = torch.linalg.vector_norm(flat, dtype=dtype)
        return whole
    rows = flat[: flat.numel() // _CHUNK * _CHUNK].view(-1, _CHUNK)
    rest = torch.linalg.vector_norm(flat[rows.numel() :], dtype=dtype)
    parts = torch.cat([torch.linalg.vector_norm(rows, dim=1, dtype=dtype), rest.view(1)])
    total: torch.Tensor = torch.linalg.vector_norm(parts, dtype=torch.float64)
    return total


class Norms(ABC):
    """Source of norms of whole parameters. All ranks call it once per optimizer step, even if they request none."""

    @abstractmethod
    def __call__(self, parameters: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[tuple[float, float]]:
        """Return two L2 norms per parameter: of the whole parameter, and of its other tensor, such as the gradient.

        All ranks get the same bits if they have the same parameters.

        :param parameters: parameters of the optimizer, each once.
        :param others: one tensor per parameter.
        """


class DistributedNorms(Norms):
    """Norms for ranks that all have whole parameters: each rank computes a part of them (:func:`~.parallel.parallel`)."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __call__(self, parameters: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[tuple[float, float]]:
        found = parallel(norm, [*parameters, *others], self._ranks, dtype=torch.float64).tolist()
        return list(zip(found[: len(parameters)], found[len(parameters) :], strict=True))


#: Norms that a rank computes by itself.
LOCAL_NORMS: Norms = DistributedNorms(SingleRank())


class StripedNorms(Norms):
    """Norms for parameters that are striped over the ranks.

    The ranks' squared norms are added up in the order of the ranks. This takes one all-gather of 16 bytes per parameter
    of the model.

    :param numbers: ``id`` of an optimizer's parameter -> number of the whole parameter that it is a stripe of.
    :param count: number of the model's parameters.
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
