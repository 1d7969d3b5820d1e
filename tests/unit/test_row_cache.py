"""RowCache: any order in, the same arrays out; bad rows counted."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.errors import InputError


def batch(
    features: list, labels: list, ids: list[int], kind: pa.DataType | None = None, label: pa.DataType | None = None
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(features, kind or pa.list_(pa.float32())),
            pa.array(labels, label or pa.float64()),
            pa.array(ids, pa.int64()),
        ],
        names=["features", "label", "id"],
    )


def test_sorted_by_id_whatever_the_order() -> None:
    one = batch([[1, 2], [3, 4]], [0, 1], [7, 2])
    two = batch([[5, 6]], [2], [5])
    caches = [RowCache.from_batches(iter(order), True) for order in ([one, two], [two, one])]
    for cache in caches:
        assert torch.equal(cache.features, torch.tensor([[3.0, 4.0], [5.0, 6.0], [1.0, 2.0]]))
        assert torch.equal(cache.labels, torch.tensor([1, 2, 0]))
        assert (cache.features.dtype, cache.labels.dtype) == (torch.float32, torch.int64)
        assert (cache.rows, cache.width) == (3, 2)


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 2), pa.list_(pa.int32())],
)
def test_list_types(kind: pa.DataType) -> None:
    cache = RowCache.from_batches(iter([batch([[1, 2], [3, 4]], [0.5, 1.5], [0, 1], kind)]), False)
    assert torch.equal(cache.features, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert torch.equal(cache.labels, torch.tensor([0.5, 1.5]))


def test_scalars_and_slices() -> None:
    whole = batch([1.0, 2.0, 3.0], [0, 1, 2], [0, 1, 2], pa.float32(), pa.int64())
    cache = RowCache.from_batches(iter([whole.slice(1, 2)]), True)
    assert torch.equal(cache.features, torch.tensor([[2.0], [3.0]]))
    lists = batch([[1, 2], [3, 4], [5, 6]], [0, 1, 2], [0, 1, 2])
    cache = RowCache.from_batches(iter([lists.slice(2), lists.slice(0, 1)]), True)
    assert torch.equal(cache.features, torch.tensor([[1.0, 2.0], [5.0, 6.0]]))


def test_no_rows() -> None:
    for batches in ([], [batch([], [], [])]):
        cache = RowCache.from_batches(iter(batches), True)
        assert (cache.rows, cache.width) == (0, 0)
        assert cache.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ([[1, 2], None, None], [0, 1, 1], "2 of 3 rows have null features"),
        ([[1, 2], [1, None], [3, 4]], [0, 1, 1], "1 of 3 rows have null features"),
        ([[1, 2], [1], [3, 4]], [0, 1, 1], "2 different lengths in 3 rows: 1, 2"),
        ([[1, 2]] * 3, [0, None, 1], "1 of 3 rows have a null label"),
        ([[1, 2]] * 3, [float("nan"), float("nan"), 1], "2 of 3 rows have a NaN label"),
        ([[1, 2]] * 3, [0.5, 1, 1], "1 of 3 rows have a label that is not an integer"),
    ],
)
def test_bad_rows_are_counted_over_all_batches(features: list, labels: list, message: str) -> None:
    batches = [batch(features[i : i + 1], labels[i : i + 1], [i]) for i in range(3)]
    with pytest.raises(InputError, match=message):
        RowCache.from_batches(iter(batches), True)
    with pytest.raises(InputError, match=message):
        RowCache.from_batches(iter([batch(features, labels, [0, 1, 2])]), True)


def test_memory_is_at_most_twice_the_data() -> None:
    rows, width, pieces = 20_000, 100, 10
    size = rows * width * 4
    before = pa.total_allocated_bytes()
    peak = 0

    def batches() -> Iterator[pa.RecordBatch]:
        for piece in range(pieces):
            ids = pa.array(np.arange(piece, rows, pieces))
            values = pa.array(np.random.default_rng(piece).random(len(ids) * width, np.float32))
            values = pa.concat_arrays([values, values.slice(0, 0)])  # in Arrow's own memory, so that it is counted
            offsets = pa.array(np.arange(len(ids) + 1, dtype=np.int32) * width)
            yield pa.RecordBatch.from_arrays(
                [pa.ListArray.from_arrays(offsets, values), ids, ids], names=["features", "label", "id"]
            )
            nonlocal peak
            peak = max(peak, pa.total_allocated_bytes() - before)

    cache = RowCache.from_batches(batches(), True)
    assert torch.equal(cache.labels, torch.arange(rows))
    assert peak < 1.1 * size
    assert pa.total_allocated_bytes() - before < 0.1 * size, "batches must be let go"
