"""BatchSampler: every row once, all ranks in step, whatever the partitions look like."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkdl_comm.data.partitions import BatchSampler, deal_rows, describe_imbalance, permutation
from sparkdl_comm.errors import InputError

COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=9).filter(any)


@given(COUNTS, st.integers(1, 200))
@example([1, 1, 1], 1)
@example([0, 0, 7], 2)
@example([1, 0, 0, 0], 100)
@example([3, 2, 1], 1)
def test_plan(counts: list[int], batch_size: int) -> None:
    sampler = BatchSampler.of(counts, batch_size)
    total, world = sum(counts), len(counts)
    assert sampler.total == total
    assert sampler.steps == -(-total // batch_size)
    for rank, count in enumerate(counts):
        edges = [sampler.slice(rank, step) for step in range(sampler.steps)]
        assert edges[0][0] == 0
        assert edges[-1][1] == count
        assert all(stop == start for (_, stop), (start, _) in pairwise(edges))
        sizes = {stop - start for start, stop in edges}
        assert min(sizes) >= 0
        assert max(sizes) - min(sizes) <= 1
    rows = [sampler.rows(step) for step in range(sampler.steps)]
    for step, expected in enumerate(rows):
        slices = [sampler.slice(rank, step) for rank in range(world)]
        assert sum(stop - start for start, stop in slices) == expected
    assert 1 <= min(rows) <= max(rows) <= batch_size
    assert max(rows) - min(rows) <= 1


@given(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1), st.integers(0, 50), st.integers(0, 20))
def test_permutation(rows: int, seed: int, epoch: int, rank: int) -> None:
    order = permutation(rows, seed, epoch, rank)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(rows))
    assert np.array_equal(order, permutation(rows, seed, epoch, rank))


def test_permutation_depends_on_everything() -> None:
    orders = {permutation(50, *key).tobytes() for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0)]}
    assert len(orders) == 5


@given(COUNTS, st.integers(-(2**63), 2**63 - 1), st.integers(0, 50))
def test_rows_dealt_anew(counts: list[int], seed: int, epoch: int) -> None:
    ranks = [deal_rows(counts, seed, epoch, rank) for rank in range(len(counts))]
    assert [len(rows) for rows in ranks] == counts
    assert np.array_equal(np.sort(np.concatenate(ranks)), np.arange(sum(counts))), "each row is one rank's"
    assert all(np.array_equal(rows, deal_rows(counts, seed, epoch, rank)) for rank, rows in enumerate(ranks))
    assert np.array_equal(deal_rows([sum(counts)], seed, epoch, 0), permutation(sum(counts), seed, epoch, 0))


def test_other_epochs_and_seeds_deal_otherwise() -> None:
    hands = {tuple(sorted(deal_rows([20, 30], *key, 0))) for key in [(0, 0), (0, 1), (0, 2), (1, 0)]}
    assert len(hands) == 4


@pytest.mark.parametrize(("counts", "batch_size"), [([0, 0], 8), ([], 8), ([3], 0), ([3, -1], 2)])
def test_refused(counts: list[int], batch_size: int) -> None:
    with pytest.raises(InputError):
        BatchSampler.of(counts, batch_size)


def test_a_rank_that_the_others_wait_for() -> None:
    told = describe_imbalance([100, 900, 100, 100])
    assert told is not None
    assert "rank 1 has 900 of the 1200 rows" in told
    assert describe_imbalance([200, 600, 250, 150]) is None, "not more than twice its share"
    assert describe_imbalance([0, 0, 300, 0]) is None, "so few may be by chance"
    assert describe_imbalance([1000]) is None
