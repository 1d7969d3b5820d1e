"""Selection of the largest magnitudes on a GPU, what is made of it, and what is left out."""

from __future__ import annotations

import pytest
import torch

from sparkdl_comm.compress import exact
from sparkdl_comm.compress.feedback import FlatRange
from sparkdl_comm.compress.selection import DTYPES, OPERATORS, operator
from sparkdl_comm.compress.sums import Sparsifier
from sparkdl_comm.compress.wire import SparseFormat
from tests.property.test_selection import KINDS, ORDERS, magnitudes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_exact_selects_the_magnitudes_that_it_selects_on_the_cpu(kind: str, order: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    for count in (2, 8191, 300_001):
        values = ORDERS[order](KINDS[kind](count)).to(dtype)
        for k in {1, max(1, count // 1000), count // 2, count - 1}:
            found = exact.select(values.cuda(), k)
            assert found.is_cuda
            assert bool((found.diff() > 0).all())
            assert torch.equal(magnitudes(values[found.cpu()]), magnitudes(values[exact.select(values, k)])), (count, k)


def test_exact_selects_what_it_selects_on_the_cpu_where_no_two_are_equal() -> None:
    torch.manual_seed(1)
    values = (torch.randperm(1_000_003) - 500_000.25).float()
    for k in (1, 1000, 400_000):
        assert torch.equal(exact.select(values.cuda(), k).cpu(), exact.select(values, k))


def test_more_elements_than_31_bits_of_bytes() -> None:
    torch.manual_seed(1)
    values = torch.randn(600_000_000, device="cuda")
    found = exact.select(values, 1000)
    assert torch.equal(magnitudes(values[found]), magnitudes(values[exact.by_topk(values, 1000)]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_what_every_operator_promises(name: str, kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    values, k = KINDS[kind](20_011).to(dtype).cuda(), 21
    indices = operator(name)(values, k, torch.Generator().manual_seed(0))
    assert (indices.dtype, indices.shape, indices.is_cuda) == (torch.int64, (k,), True)
    assert bool((indices.diff() > 0).all())
    assert torch.equal(indices, operator(name)(values, k, torch.Generator().manual_seed(0)))
    not_finite = int((~values.isfinite()).sum())
    assert int((~values[indices].isfinite()).sum()) == min(k, not_finite)
    finite = values.abs().float().masked_fill(~values.isfinite(), 0)
    upper = operator(name).upper(values, k)
    assert int((finite[indices] > upper).sum()) == int((finite > upper).sum())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [5000, 400_000])
def test_the_same_bytes_on_the_network(count: int, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    wire = SparseFormat.of_density(count, 0.02, dtype, flags=11)
    indices = torch.randperm(count)[: wire.entries].sort().values
    values, flags = torch.randn(wire.entries), torch.rand(11) < 0.5
    packed = wire.encode(indices.cuda(), values.cuda(), flags.cuda())
    assert torch.equal(packed.cpu(), wire.encode(indices, values, flags))
    for on_gpu, on_cpu in zip(wire.decode(packed), wire.decode(packed.cpu()), strict=True):
        assert torch.equal(on_gpu.cpu(), on_cpu)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_what_is_left_out_is_kept_on_the_device(momentum: float) -> None:
    """Numbers of few bits, whose sums and products are exact, and no two of which are equal in the first step."""
    part = FlatRange.of(0, 70_000, [0, 1000, 40_000])
    sparsifiers = [Sparsifier(operator("exact"), torch.Generator(), torch.float32, momentum) for _ in range(2)]
    for step in range(4):
        torch.manual_seed(step)
        gradient = (torch.randperm(70_000) - 35_000.25).float()
        if step == 2:
            gradient[1000:40_000] = -0.0  # a parameter that was not used
        packed = [
            one.encode(part, gradient.to(device), 0.01, 2.0)
            for one, device in zip(sparsifiers, ("cpu", "cuda"), strict=True)
        ]
        assert torch.equal(packed[1].cpu(), packed[0])
        sums = [torch.empty(70_000), torch.empty(70_000, device="cuda")]
        for one, bits, result in zip(sparsifiers, packed, sums, strict=True):
            one.sum_selections(part, [bits, bits], 0.01, result)
            one.settle(True)
        assert torch.equal(sums[1].cpu().view(torch.int32), sums[0].view(torch.int32))
