"""Selection of the largest magnitudes, of drawn vectors: what every operator promises, and what each one does besides."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.compress import exact
from sparkdl_comm.compress.selection import DTYPES, OPERATORS, mstopk, operator, search_band
from tests.draws import examples

INFINITE = float("inf")
#: What gradients may look like, and what they had better not.
KINDS = {
    "gaussian": lambda count: torch.randn(count),
    "heavy tails": lambda count: torch.randn(count) * torch.exp(4 * torch.randn(count)),
    "few values": lambda count: torch.randint(-2, 3, (count,)).float(),
    "mostly zero": lambda count: torch.randn(count) * (torch.rand(count) < 0.05),
    "zero": lambda count: torch.zeros(count) * torch.randn(count).sign(),
    "constant": lambda count: torch.randn(1).expand(count).clone(),
    "one spike": lambda count: torch.full((count,), 1e-3).index_fill(0, torch.randint(count, (1,)), 1e4),
    "denormal": lambda count: torch.randn(count) * 1e-40,
    "huge": lambda count: torch.randn(count).sign() * 3e38,
    "infinite": lambda count: torch.randn(count).masked_fill(torch.rand(count) < 0.1, -INFINITE),
    "nan": lambda count: torch.randn(count).masked_fill(torch.rand(count) < 0.1, float("nan")),
    "nan and infinite": lambda count: torch.tensor([INFINITE, float("nan"), 1.0])[torch.randint(3, (count,))],
}
ORDERS = {
    "as drawn": lambda values: values,
    "ascending": lambda values: values.sort().values,
    "descending": lambda values: values.sort(descending=True).values,
    "periodic": lambda values: values[: max(1, len(values) // 8)].repeat(9)[: len(values)],
}


@st.composite
def vectors(draw, dtypes=DTYPES):
    """A vector of 0 to 600 elements and a k."""
    if draw(st.booleans()):
        values = torch.tensor(draw(st.lists(st.floats(width=32), max_size=20)), dtype=torch.float32)
    else:
        torch.manual_seed(draw(st.integers(0, 2**31)))
        values = KINDS[draw(st.sampled_from(list(KINDS)))](draw(st.integers(1, 600)))
        values = ORDERS[draw(st.sampled_from(list(ORDERS)))](values)
    return values.to(draw(st.sampled_from(dtypes))), draw(st.integers(0, len(values)))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def magnitudes(values: torch.Tensor) -> torch.Tensor:
    """As float32, ascending; NaN, which is not equal to itself, is -1 and the last."""
    found = values.abs().float().sort().values
    return found.masked_fill(found.isnan(), -1)


@given(vectors(), st.sampled_from(list(OPERATORS)), st.integers(0, 2**31))
def test_exactly_k_distinct_indices_and_all_that_is_above_the_threshold(drawn, name, seed):
    values, k = drawn
    before = values.clone()
    indices = operator(name)(values, k, generator(seed))
    assert (indices.dtype, indices.shape) == (torch.int64, (k,))
    assert bool((indices.diff() > 0).all())
    assert k == 0 or 0 <= indices[0] <= indices[-1] < len(values)
    assert torch.equal(indices, operator(name)(values, k, generator(seed)))
    assert torch.equal(values.view(torch.uint8), before.view(torch.uint8))
    not_finite = int((~values.isfinite()).sum())
    assert int((~values[indices].isfinite()).sum()) == min(k, not_finite)
    if 0 < k < len(values):
        # What is not finite was counted.
        finite = values.abs().float().masked_fill(~values.isfinite(), 0)
        upper = operator(name).upper(values, k)
        assert int((finite[indices] > upper).sum()) == int((finite > upper).sum())


@given(vectors(), st.sampled_from([name for name, one in OPERATORS.items() if one.is_exact]))
def test_exact_operators_select_the_largest_magnitudes(drawn, name):
    values, k = drawn
    indices = operator(name)(values, k, generator())
    assert torch.equal(magnitudes(values[indices]), magnitudes(torch.topk(values.abs(), k).values))


@examples(100, 3000)
@given(vectors(), st.integers(1, 64), st.integers(1, 100), st.sampled_from([0, 5]), st.integers(1, 4))
def test_exact_however_its_pieces_and_its_sample_fall(drawn, sample, piece, deviations, threads):
    values, k = drawn
    if k in (0, len(values)):
        return
    constants = {"SAMPLE_ELEMENTS": sample, "PIECE_ELEMENTS": piece, "DEVIATIONS": deviations}
    with mock.patch.multiple(exact, **constants), mock.patch.object(torch, "get_num_threads", return_value=threads):
        indices = exact.select(values, k)
    bits = values.view({4: torch.int32, 2: torch.int16}[values.element_size()])
    # In all bits but the sign's; stable: of equal ones the first.
    order = (bits & torch.iinfo(bits.dtype).max).sort(descending=True, stable=True).indices
    assert torch.equal(indices, order[:k].sort().values)


@examples(100, 3000)
@given(vectors(), st.integers(0, 40), st.integers(0, 2**31))
def test_mstopk_selects_what_reaches_its_upper_threshold_and_a_run_of_the_band(drawn, rounds, seed):
    values, k = drawn
    found = values.abs().float()
    finite = found.isfinite()
    left = k - int((~finite).sum())
    if k in (0, len(values)) or not left > 0:
        return
    band = search_band(found[finite], left, rounds)
    selected = torch.zeros(len(values), dtype=torch.bool)
    selected[mstopk(values, k, generator(seed), rounds)] = True
    reach = found[finite] >= band.upper
    assert int(reach.sum()) == band.above <= left
    assert bool(selected[finite][reach].all())
    between = selected[finite][(found[finite] >= band.lower) & ~reach]
    assert int(between.sum()) == left - band.above
    if left > band.above:
        assert bool(between.nonzero().diff(dim=0).eq(1).all()), "a run"
    # The search's promise: as many as reach the upper threshold, and what is not finite, are of the largest k.
    largest = torch.topk(values.abs(), k).indices
    assert int(selected[largest].sum()) >= int((~finite).sum()) + band.above


@given(st.integers(2, 600), st.integers(0, 2**31), st.data())
def test_mstopk_is_exact_where_thresholds_can_tell_elements_apart(count, seed, data):
    values = torch.arange(float(count))[torch.randperm(count, generator=generator(seed))]
    most = int((values >= values.mean()).sum())
    k = data.draw(st.integers(1, most))
    assert torch.equal(operator("mstopk")(values, k, generator()), torch.topk(values, k).indices.sort().values)


@pytest.mark.parametrize("name", list(OPERATORS))
def test_a_gaussian_vector_larger_than_the_sample(name):
    values = torch.randn(200_000, generator=generator(1))
    indices = operator(name)(values, 200, generator())
    assert torch.equal(indices, torch.topk(values.abs(), 200).indices.sort().values)
