"""Norms of parameters and gradients: how exact, and of stripes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.layerwise import DistributedNorms, StripedNorms, norm
from sparkdl_comm.optim.parallel import GangRanks, SingleRank
from tests.unit.collective_helpers import in_gang
from tests.unit.gang_helpers import SECONDS


@pytest.mark.parametrize("count", [0, 1, 1 << 14, (1 << 14) + 1, 1_000_000])
@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 5e-7), (torch.float64, 1e-13), (torch.bfloat16, 1e-5)], ids=str
)
def test_norms_are_exact_to_the_last_digits(count: int, dtype: torch.dtype, error: float) -> None:
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert norm(tensor).item() == pytest.approx(tensor.double().norm().item(), rel=error)


def test_the_bits_of_a_norm_do_not_depend_on_threads() -> None:
    tensor = torch.randn(1_000_000, generator=torch.Generator().manual_seed(1))
    before = torch.get_num_threads()
    found = set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.add(norm(tensor).item())
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_norms_of_stripes_are_those_of_the_whole() -> None:
    """Three ranks; the second has two stripes of one parameter, the last none at all."""
    random = torch.Generator().manual_seed(1)
    whole = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in ((3, 4), (5,), (2, 3, 2))]
    cuts = [[(0, 0, 7), (1, 0, 2)], [(0, 7, 9), (0, 9, 12), (2, 0, 12), (1, 2, 5)], []]
    expected = DistributedNorms(SingleRank())(whole, [value * 2 for value in whole])

    def one(gang: Gang) -> list[tuple[float, float]]:
        numbers = [number for number, _, _ in cuts[gang.rank]]
        stripes = [whole[number].flatten()[start:stop] for number, start, stop in cuts[gang.rank]]
        norms = StripedNorms(
            {id(s): n for n, s in zip(numbers, stripes, strict=True)}, len(whole), GangRanks(gang, SECONDS)
        )
        found = norms(stripes, [stripe * 2 for stripe in stripes])
        return [(number, pair) for number, pair in zip(numbers, found, strict=True)]

    ranks = in_gang("star:3", ("lo",), one)
    bits: dict[int, Any] = {}
    for number, pair in [asked for rank in ranks for asked in rank]:
        assert pair == pytest.approx(expected[number], rel=1e-12)
        assert bits.setdefault(number, pair) == pair
    assert sorted(bits) == [0, 1, 2]
    assert ranks[2] == []
