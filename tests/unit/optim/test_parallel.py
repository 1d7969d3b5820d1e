"""The parallel tensor operator: what is dealt out over ranks comes back in order, with the bits of who computed it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparkdl_comm.collectives.communicator import Communicator
from sparkdl_comm.errors import InputError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.parallel import GangRanks, Ranks, SingleRank, parallel
from tests.unit.collective_helpers import conf, in_gang
from tests.unit.gang_helpers import SECONDS

TENSORS = [torch.arange(count, dtype=torch.float32) + 1 for count in (5, 1, 0, 8, 2, 2, 3)]


def ends(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack([tensor.sum(), tensor.new_tensor(len(tensor))])


def by_gang(gang: Gang) -> Ranks:
    return GangRanks(gang, SECONDS)


def by_communicator(gang: Gang) -> Ranks:
    return Communicator(gang, torch.device("cpu"), conf(strategy="ring", topology=f"star:{gang.world}"))


@pytest.mark.parametrize("ranks", [by_gang, by_communicator])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_are_in_order_and_each_is_computed_once(ranks: Any, world: int, dtype: torch.dtype) -> None:
    def one(gang: Gang) -> tuple[torch.Tensor, list[int]]:
        others, seen = ranks(gang), []

        def op(tensor: torch.Tensor) -> torch.Tensor:
            seen.append(len(tensor))
            return ends(tensor)

        found = parallel(op, TENSORS, others, shape=(2,), dtype=dtype)
        gang.all_gather(b"", SECONDS)
        if isinstance(others, Communicator):
            others.close()
        return found, seen

    results = in_gang(f"star:{world}", ("lo",), one)
    for found, _ in results:
        assert found.dtype == dtype
        assert torch.equal(found, torch.stack([ends(tensor) for tensor in TENSORS]).to(dtype))
    assert sorted(count for _, seen in results for count in seen) == sorted(len(tensor) for tensor in TENSORS)


def test_who_computes_it_decides() -> None:
    found = in_gang(
        "star:3", ("lo",), lambda gang: parallel(lambda t: t.new_tensor(gang.rank / 3), TENSORS, by_gang(gang))
    )
    assert len(found[0].unique()) == 3
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_nothing_to_do() -> None:
    assert parallel(ends, [], SingleRank(), shape=(2,)).shape == (0, 2)


def test_results_of_another_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"op returned a tensor of shape \[2\], but the call says shape=\[\]"):
        parallel(ends, TENSORS, SingleRank())
