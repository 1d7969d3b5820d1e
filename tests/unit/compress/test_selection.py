"""Selection of the largest magnitudes: edge cases, seeds, dtypes, errors, and how often the exact one reads."""

import pytest
import torch

from sparkdl_comm.compress import exact
from sparkdl_comm.compress.selection import DTYPES, OPERATORS, operator, search_band
from sparkdl_comm.errors import ConfError, InputError

NAN, INFINITE = float("nan"), float("inf")
every_operator = pytest.mark.parametrize("name", list(OPERATORS))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def select(name: str, values: list[float], k: int, seed: int = 0) -> list[int]:
    return operator(name)(torch.tensor(values), k, generator(seed)).tolist()


@every_operator
def test_none_and_all(name):
    assert select(name, [], 0) == []
    assert select(name, [3.0, NAN], 0) == []
    assert select(name, [3.0, -4.0, 0.0], 3) == [0, 1, 2]
    assert select(name, [NAN], 1) == [0]
    none = operator(name)(torch.empty(0), 0)
    assert (none.dtype, none.shape) == (torch.int64, (0,))


@every_operator
def test_the_largest_whatever_their_sign(name):
    assert select(name, [1.0, -9.0, 2.0, 8.0, -0.5, 0.0], 2) == [1, 3]


@every_operator
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3e38, 1e-45])
def test_all_are_equal(name, value):
    for k in (1, 7, 99):
        indices = select(name, [value] * 100, k)
        assert len(set(indices)) == k
        assert indices == sorted(indices)
        assert set(indices) <= set(range(100))


@every_operator
@pytest.mark.parametrize("wrong", [NAN, INFINITE, -INFINITE])
def test_what_is_not_finite_comes_first(name, wrong):
    values = [1.0, 5.0, wrong, 4.0, 0.0, wrong, 3.0, 2.0]
    assert select(name, values, 2) == [2, 5]
    assert select(name, values, 3) == [1, 2, 5]
    [first] = select(name, values, 1)
    assert first in (2, 5)


def test_nan_is_larger_than_infinity_for_exact_operators():
    for name in ("exact", "topk", "dgc"):
        assert select(name, [INFINITE, 1.0, NAN, -INFINITE], 1) == [2]
    assert exact.select(torch.tensor([1.0, NAN, INFINITE]).repeat(30_000), 30_000).tolist()[:3] == [1, 4, 7]


@every_operator
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(name, dtype):
    values = torch.linspace(-1, 1.5, 251).to(dtype)
    assert operator(name)(values, 3, generator()).tolist() == [248, 249, 250]
    # 65504 is the largest of float16, whose sum is infinite there.
    assert operator(name)(torch.tensor([65504.0] * 9 + [1.0]).to(dtype), 9, generator()).tolist() == list(range(9))


@every_operator
def test_views_and_parameters(name):
    every_second = torch.arange(20.0)[::2]
    assert operator(name)(every_second, 2, generator()).tolist() == [8, 9]
    parameter = torch.nn.Parameter(torch.tensor([1.0, -3.0, 2.0]))
    assert operator(name)(parameter, 2, generator()).tolist() == [1, 2]


@every_operator
def test_errors(name):
    with pytest.raises(InputError, match="k=-1 of 3 elements: k must be from 0 to"):
        operator(name)(torch.ones(3), -1)
    with pytest.raises(InputError, match="k=4 of 3 elements"):
        operator(name)(torch.ones(3), 4)
    with pytest.raises(InputError, match=r"of shape \[2, 2\]"):
        operator(name)(torch.ones(2, 2), 1)
    with pytest.raises(InputError, match="not from torch.int64"):
        operator(name)(torch.ones(3, dtype=torch.int64), 1)


def test_an_operator_that_there_is_not():
    with pytest.raises(ConfError, match="operator 'best': there are mstopk, exact, topk, dgc"):
        operator("best")


def test_a_seed_decides_which_of_the_band():
    values = torch.ones(1000)
    found = [operator("mstopk")(values, 10, generator(seed)).tolist() for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    runs = {tuple(select("mstopk", [1.0] * 4, 2, seed)) for seed in range(50)}
    assert runs == {(0, 1), (1, 2), (2, 3)}


def test_mstopk_without_an_upper_threshold():
    # The largest magnitude occurs more often than k.
    band = search_band(torch.tensor([1.0] * 5 + [7.0] * 5), 3)
    assert (band.upper, band.above) == (INFINITE, 0)
    assert band.lower > 1
    assert set(select("mstopk", [1.0] * 5 + [7.0] * 5, 3)) <= {5, 6, 7, 8, 9}


def test_mstopk_without_a_lower_threshold():
    # Two reach the mean, fewer than k.
    band = search_band(torch.tensor([1.0, 2.0, 3.0, 100.0, 101.0]), 3)
    assert band.lower == 0
    assert band.above == 2
    assert set(select("mstopk", [1.0, 2.0, 3.0, 100.0, 101.0], 3)) > {3, 4}


def test_mstopk_where_the_sum_is_infinite():
    assert select("mstopk", [3e38] * 5 + [1.0] * 5, 5) == [0, 1, 2, 3, 4]


def test_mstopk_ends_when_a_threshold_fits():
    values = torch.arange(1024.0)
    assert search_band(values, 512, rounds=1).above < 512
    assert search_band(values, 256, rounds=1).above == 256
    assert search_band(values, 256, rounds=1) == search_band(values, 256)


def readings(monkeypatch: pytest.MonkeyPatch, values: torch.Tensor, k: int) -> int:
    """How often `exact` reads the vector; what it selects is compared with topk's."""
    passes = []
    read = exact._MagnitudeBits._pieces

    def counted(bits: exact._MagnitudeBits, first: int, stop: int):
        if first == 0:
            passes.append(stop)
        return read(bits, first, stop)

    monkeypatch.setattr(exact._MagnitudeBits, "_pieces", counted)
    monkeypatch.setattr(exact, "PIECE_ELEMENTS", 100_000)
    indices = exact.select(values, k)
    assert (len(indices), bool((indices.diff() > 0).all())) == (k, True)
    assert torch.equal(values[indices].abs().sort().values, torch.topk(values.abs(), k).values.flip(0))
    return len(passes)


def test_the_exact_one_reads_once(monkeypatch):
    assert readings(monkeypatch, torch.randn(300_000, generator=generator()), 300) == 1


@pytest.mark.parametrize("k", [1, 300, 299_999])
def test_the_exact_one_reads_twice_where_elements_are_equal(monkeypatch, k):
    assert readings(monkeypatch, torch.full((300_000,), -2.0), k) <= 2


@pytest.mark.parametrize("largest_are_sampled", [True, False])
def test_a_sample_that_misleads(monkeypatch, largest_are_sampled):
    # A half of them are 1, where a bin of the histogram begins.
    values = torch.rand(300_000, generator=generator()).masked_fill(torch.arange(300_000) % 2 == 0, 0) + 1
    sampled = torch.from_numpy(exact.sample_positions(len(values)))
    values[sampled] += 5 if largest_are_sampled else -1
    # More than are sampled. By the larger k, the k-th largest is a 1.
    for k in (20_000, 200_000):
        with monkeypatch.context() as context:
            assert readings(context, values, k) <= 4
    if largest_are_sampled:
        assert readings(monkeypatch, values, 20_000) == 4


def test_the_sample_is_spread_over_the_vector():
    for count in (4 * exact.SAMPLE_ELEMENTS, 4 * exact.SAMPLE_ELEMENTS + 1, 10_000_019):
        positions = torch.from_numpy(exact.sample_positions(count))
        assert bool((positions.diff() >= 0).all())
        assert 0 <= positions[0] < 2 * count / exact.SAMPLE_ELEMENTS
        assert count - 2 * count / exact.SAMPLE_ELEMENTS < positions[-1] < count
