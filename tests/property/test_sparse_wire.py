"""Any selection comes back from its bytes, whose number was known before."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.compress.wire import VALUE_TYPES, SparseFormat
from sparkdl_comm.errors import InputError, ProtocolError


@st.composite
def selections(draw):
    elements = draw(st.one_of(st.integers(0, 100), st.integers(65_530, 65_550), st.integers(65_536, 400_000)))
    entries = draw(st.one_of(st.integers(0, min(elements, 50)), st.integers(0, elements)))
    dtype, flags = draw(st.sampled_from(list(VALUE_TYPES.values()))), draw(st.integers(0, 20))
    random = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    indices = torch.randperm(elements, generator=random)[:entries].sort().values
    values = torch.randn(entries, generator=random) * 10.0 ** draw(st.integers(-30, 30))
    return SparseFormat(elements, entries, dtype, flags), indices, values, torch.rand(flags, generator=random) < 0.5


@given(selections())
def test_round_trip(selection):
    sparse, indices, values, flags = selection
    packed = sparse.encode(indices, values, flags)
    assert (packed.dtype, packed.numel()) == (torch.uint8, sparse.nbytes)
    found, rounded, told = sparse.decode(packed)
    assert torch.equal(found, indices)
    assert torch.equal(told, flags)
    assert torch.equal(rounded, sparse.round_values(values))
    assert rounded.isfinite().all()
    if sparse.dtype is torch.float32:
        assert torch.equal(rounded, values)


@given(selections())
def test_positions_take_the_least(selection):
    sparse, *_ = selection
    rest = sparse.entries * sparse.dtype.itemsize + -(-sparse.flags // 8)
    stretches = -(-sparse.elements // 65_536) if sparse.elements > 65_536 else 0
    assert sparse.nbytes - rest == min(4 * sparse.entries or 0, 2 * sparse.entries + 4 * stretches)


def test_what_fp16_cannot_hold_is_its_largest_and_what_is_not_finite_stays_so():
    sparse = SparseFormat(9, 4, torch.float16)
    values = torch.tensor([1e9, -1e9, float("inf"), float("nan")])
    _, rounded, _ = sparse.decode(sparse.encode(torch.arange(4), values, torch.zeros(0, dtype=torch.bool)))
    assert rounded[:3].tolist() == [65504.0, -65504.0, float("inf")]
    assert rounded[3].isnan()


def test_golden_bytes():
    sparse = SparseFormat(1 << 17, 5, torch.float32, 9)
    indices = torch.tensor([1, 2, 65_535, 65_536, 131_071])
    flags = torch.tensor([True, False, False, False, False, False, False, True, True])
    packed = sparse.encode(indices, torch.tensor([1.0, -2.0, 0.5, -0.0, 3.0]), flags)
    assert bytes(packed.tolist()).hex() == (
        "0300000002000000"  # entries of each 65,536 elements
        "01000200ffff0000ffff"
        "0000803f000000c00000003f0000008000004040"
        "8101"
    )


@pytest.mark.parametrize(
    ("elements", "entries", "packed", "complaint"),
    [
        (10, 2, torch.zeros(11, dtype=torch.uint8), "11 x torch.uint8"),
        (10, 2, torch.zeros(12), "12 x torch.float32"),
        (10, 2, torch.full((12,), 99, dtype=torch.uint8), "index .* is out of range"),
        (70_000, 9, torch.full((4 * 2 + 9 * 6,), 0, dtype=torch.uint8), "do not add up"),
        (70_000, 9, torch.full((4 * 2 + 9 * 6,), 255, dtype=torch.uint8), "negative"),
    ],
)
def test_what_is_no_selection_is_refused(elements, entries, packed, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        SparseFormat(elements, entries).decode(packed)


@pytest.mark.parametrize(("elements", "entries"), [(3, 4), (3, -1), (1 << 32, 1)])
def test_formats_that_cannot_be(elements, entries):
    with pytest.raises(InputError, match=f"{entries} entries of {elements}"):
        SparseFormat(elements, entries)
