"""Reading: any order in, the same tensors out; rows that cannot be used counted over all ranks."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl_comm.data.cache import RowCache, RowReader
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.errors import InputError

FEATURES = Field("featuresCol", "x")
CLASS = Field("labelCol", "y", "int64", ())
VALUE = Field("labelCol", "y", "float32", ())
CLASSES, VALUES = RowFormat((FEATURES,), (CLASS,)), RowFormat((FEATURES,), (VALUE,))
FLOATS = pa.list_(pa.float32())


def batch(
    features: list,
    labels: list,
    ids: list[int],
    kind: pa.DataType = FLOATS,
    label: pa.DataType | None = None,
    **more: Any,
) -> pa.RecordBatch:
    columns = {
        "input0": pa.array(features, kind),
        "target0": pa.array(labels, label or pa.float64()),
        "id": pa.array(ids, pa.int64()),
        **more,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def read(batches: Iterable[pa.RecordBatch], rows: RowFormat) -> RowCache:
    reading = RowReader(batches, rows)
    return reading.rows([reading.account]).training


def test_sorted_by_id_whatever_the_order() -> None:
    one = batch([[1, 2], [3, 4]], [0, 1], [7, 2])
    two = batch([[5, 6]], [2], [5])
    for order in ([one, two], [two, one]):
        cache = read(order, CLASSES)
        assert torch.equal(cache.inputs[0], torch.tensor([[3.0, 4.0], [5.0, 6.0], [1.0, 2.0]]))
        assert torch.equal(cache.targets[0], torch.tensor([1, 2, 0]))
        assert (cache.inputs[0].dtype, cache.targets[0].dtype) == (torch.float32, torch.int64)
        assert (cache.rows, cache.weights) == (3, None)
        taken = cache.take(torch.tensor([2, 0]), torch.device("cpu"))
        assert torch.equal(taken.inputs[0], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        assert torch.equal(taken.targets[0], torch.tensor([0, 1]))


def test_rows_of_one_id_that_are_not_equal_do_not_depend_on_the_order() -> None:
    """Zeros of either sign have one hash; others by chance."""
    rows = RowFormat((FEATURES,), (CLASS,), weight="w", validation="validationIndicatorCol 'v'")
    one, two, three = [0.0, 1.0], [-0.0, 1.0], [2.0, 3.0]

    def batches(order: tuple[int, ...]) -> pa.RecordBatch:
        features, weights = [one, two, three, one], [1.0, 2.0, 3.0, 1.0]
        held = pa.array([False] * 4)
        return batch(
            [features[i] for i in order],
            [i % 3 for i in order],
            [5, 5, 5, 5],
            weight=pa.array([weights[i] for i in order]),
            validation=held,
        )

    found = []
    for order in itertools.permutations(range(4)):
        reading = RowReader([batches(order)], rows)
        cache = reading.rows([{**reading.account, "validation": {"rows": 1, "weight": 1.0}}]).training
        found.append((cache.inputs[0].numpy().tobytes(), cache.targets[0].tolist(), cache.weights.tolist()))
    assert all(each == found[0] for each in found)
    by_label = dict(zip(found[0][1], found[0][2], strict=True))
    assert by_label[1] == 2 * by_label[0], "weights and labels move with their rows"


def test_the_account_says_which_rows_whatever_the_order() -> None:
    one, two = batch([1.0], [0], [7], pa.float32()), batch([2.0], [1], [5], pa.float32())
    digests = [RowReader(order, CLASSES).account["sha256"] for order in ([one, two], [two, one], [two, two])]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 2), pa.list_(pa.int32())],
)
def test_list_types(kind: pa.DataType) -> None:
    cache = read([batch([[1, 2], [3, 4]], [0.5, 1.5], [0, 1], kind)], VALUES)
    assert torch.equal(cache.inputs[0], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert torch.equal(cache.targets[0], torch.tensor([0.5, 1.5]))


def test_scalars_and_slices() -> None:
    whole = batch([1.0, 2.0, 3.0], [0, 1, 2], [0, 1, 2], pa.float32(), pa.int64())
    assert torch.equal(read([whole.slice(1, 2)], CLASSES).inputs[0], torch.tensor([[2.0], [3.0]]))
    lists = batch([[1, 2], [3, 4], [5, 6]], [0, 1, 2], [0, 1, 2])
    cache = read([lists.slice(2), lists.slice(0, 1)], CLASSES)
    assert torch.equal(cache.inputs[0], torch.tensor([[1.0, 2.0], [5.0, 6.0]]))


def test_integers_are_kept_for_a_model_that_looks_them_up() -> None:
    rows = [batch([3, 4], [0, 1], [0, 1], pa.int32())]
    lists = [batch([[3, 4], [5, 6]], [0, 1], [0, 1], pa.list_(pa.int64()))]
    looks_up = CLASSES.for_model(torch.nn.Sequential(torch.nn.EmbeddingBag(9, 2)))
    assert torch.equal(read(rows, looks_up).inputs[0], torch.tensor([3, 4]))
    assert torch.equal(read(lists, looks_up).inputs[0], torch.tensor([[3, 4], [5, 6]]))
    assert torch.equal(read(rows, CLASSES.for_model(torch.nn.Linear(1, 1))).inputs[0], torch.tensor([[3.0], [4.0]]))
    forced = RowFormat((Field("featuresCol", "x", "uint8"),), (CLASS,))
    assert read(lists, forced).inputs[0].dtype == torch.uint8
    with pytest.raises(
        InputError, match=r"1 of 2 rows have a value that is not an integer \(uint8\) in featuresCol 'x'"
    ):
        read([batch([[1, 2], [256, 4]], [0, 1], [0, 1], pa.list_(pa.int64()))], forced)


@pytest.mark.parametrize("labels", [[0, 1, 2, -1], [[0, 1], [1, 2], [1, 1], [0.5, -3]]])
def test_labels_outside_of_what_the_loss_takes(labels: list) -> None:
    rows = RowFormat((FEATURES,), (Field("labelCol", "y", "float32", limits=(0.0, 1.0)),))
    kind = FLOATS if isinstance(labels[0], list) else pa.float32()
    good, bad = (
        batch([[1.0]] * len(part), part, [0, 1, 2, 3][: len(part)], label=kind) for part in (labels[:1], labels)
    )
    readings = [RowReader([good], rows), RowReader([bad], rows)]
    with pytest.raises(
        InputError,
        match="2 of 5 rows have a value outside of 0 to 1, which the loss takes, in labelCol 'y', such as 2. Drop",
    ):
        readings[0].rows([reading.account for reading in readings])
    assert read([good], rows).rows == 1


def test_nested_arrays_shapes_and_several_columns() -> None:
    nested = pa.array([[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [0, 1, 2]]], pa.list_(pa.list_(pa.float64())))
    flags = pa.array([[0, 1], [1, 1]], pa.list_(pa.int8()))
    rows = RowFormat(
        (Field("featuresCols", "a", shape=(1, 2, 2)), Field("featuresCols", "b")),
        (CLASS, Field("labelCols", "z", "float32")),
    )
    cache = read([batch([[1, 2, 3, 4], [5, 6, 7, 8]], [1, 0], [5, 3], input1=nested, target1=flags)], rows)
    assert [tuple(tensor.shape) for tensor in (*cache.inputs, *cache.targets)] == [
        (2, 1, 2, 2),
        (2, 2, 3),
        (2,),
        (2, 2),
    ]
    assert torch.equal(cache.inputs[0][1], torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    assert torch.equal(cache.inputs[1][0], torch.tensor([[7.0, 8.0, 9.0], [0.0, 1.0, 2.0]]))
    assert torch.equal(cache.targets[1], torch.tensor([[1.0, 1.0], [0.0, 1.0]]))


def test_shape_that_does_not_fit() -> None:
    rows = RowFormat((Field("featuresCol", "x", shape=(2, 2)),), (CLASS,))
    with pytest.raises(
        InputError, match=r"2 of 2 rows have 3 values in featuresCol 'x', where inputShapes has \[2, 2\]"
    ):
        read([batch([[1, 2, 3]] * 2, [0, 1], [0, 1])], rows)


def test_weights_have_mean_one_over_all_ranks() -> None:
    rows = RowFormat((FEATURES,), (VALUE,), weight="w")

    def weighted(weights: list[float | None]) -> pa.RecordBatch:
        count = len(weights)
        return batch([[1.0]] * count, [0] * count, list(range(count)), weight=pa.array(weights, pa.float64()))

    readings = [RowReader([weighted(weights)], rows) for weights in ([1.0, 3.0], [4.0])]
    accounts = [reading.account for reading in readings]
    assert readings[0].rows(accounts).training.weights.tolist() == [0.375, 1.125]
    assert readings[1].rows(accounts).training.weights.tolist() == [1.5]
    for weights, message in (
        ([1, None], "1 of 2 rows have a null weight in w"),
        ([1, -2], "1 of 2 rows have a negative weight in w"),
        ([float("nan"), float("inf")], "2 of 2 rows have a NaN or infinite weight in w"),
        ([0, 0], "w: the weights of all 2 rows for training are 0"),
    ):
        with pytest.raises(InputError, match=message):
            read([weighted(weights)], rows)


def test_a_rank_without_rows_has_the_shapes_of_the_others() -> None:
    for batches in ([], [batch([], [], [])]):
        empty, full = RowReader(batches, CLASSES), RowReader([batch([[1, 2]], [0], [0])], CLASSES)
        assert (empty.account["training"]["rows"], read(batches, CLASSES).rows) == (0, 0)
        cache = empty.rows([empty.account, full.account]).training
        assert (cache.inputs[0].shape, cache.targets[0].shape) == ((0, 2), (0,))
        assert (cache.inputs[0].dtype, cache.targets[0].dtype) == (torch.float32, torch.int64)


HELD_OUT = RowFormat((FEATURES,), (CLASS,), weight="w", validation="validationIndicatorCol 'v'")


def held_out(held: list[bool | None], ids: list[int] | None = None) -> pa.RecordBatch:
    count = len(held)
    return batch(
        [[float(i)] for i in range(count)], [0] * count, ids or list(range(count)),
        weight=pa.array(range(1, count + 1), pa.float64()), validation=pa.array(held, pa.bool_()),
    )  # fmt: skip


def test_validation_rows_are_apart_and_weighted_by_themselves() -> None:
    one = RowReader([held_out([True, False, True], [9, 8, 7]), held_out([False], [3])], HELD_OUT)
    other, empty = RowReader([held_out([False, False])], HELD_OUT), RowReader([], HELD_OUT)
    accounts = [reading.account for reading in (one, other, empty)]
    rows = one.rows(accounts)
    assert rows.training.inputs[0].tolist() == [[0.0], [1.0]], "sorted by id"
    assert rows.validation.inputs[0].tolist() == [[2.0], [0.0]]
    assert rows.training.weights.tolist() == pytest.approx([4 / 6 * 1, 4 / 6 * 2]), "of 1, 2, 1 and 2"
    assert rows.validation.weights.tolist() == [1.5, 0.5]
    assert (other.rows(accounts).training.rows, other.rows(accounts).validation.rows) == (2, 0)
    assert empty.rows(accounts).validation.inputs[0].shape == (0, 1)
    assert read([batch([[1]], [0], [0])], CLASSES).rows == 1
    assert RowReader([batch([[1]], [0], [0])], CLASSES).rows([]).validation is None


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([False, False], "validationIndicatorCol 'v': none of the 4 rows is for validation"),
        ([True, True], "validationIndicatorCol 'v': all 4 rows are for validation. Leave some for training"),
        ([True, None], "2 of 4 rows have a null in validationIndicatorCol 'v'"),
    ],
)
def test_validation_rows_refused(held: list[bool | None], message: str) -> None:
    readings = [RowReader([held_out(held)], HELD_OUT) for _ in range(2)]
    for reading in readings:
        with pytest.raises(InputError, match=message):
            reading.rows([each.account for each in readings])


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ([[1, 2], None, None], [0, 1, 1], r"2 of 3 rows have a null \(or a null element\) in featuresCol 'x'"),
        ([[1, 2], [1, None], [3, 4]], [0, 1, 1], "1 of 3 rows have a null"),
        (
            [[1, 2], [1, float("nan")], [float("inf"), 4]],
            [0, 1, 1],
            "2 of 3 rows have a NaN or infinite value in featuresCol.*Imputer",
        ),
        ([[1, 2], [1], [3, 4]], [0, 1, 1], "featuresCol 'x' has arrays of different lengths in 3 rows: 1, 2"),
        ([[1, 2]] * 3, [0, None, 1], r"1 of 3 rows have a null \(or a null element\) in labelCol 'y'"),
        ([[1, 2]] * 3, [float("nan"), float("nan"), 1], "2 of 3 rows have a NaN or infinite value in labelCol 'y'"),
        ([[1, 2]] * 3, [0.5, 1, 1], r"1 of 3 rows have a value that is not an integer \(int64\) in labelCol 'y'"),
    ],
)
def test_bad_rows_are_counted_over_all_batches_and_ranks(features: list, labels: list, message: str) -> None:
    batches = [batch(features[i : i + 1], labels[i : i + 1], [i]) for i in range(3)]
    for pieces in (batches, [batch(features, labels, [0, 1, 2])]):
        with pytest.raises(InputError, match=message):
            read(pieces, CLASSES)
    readings = [RowReader([piece], CLASSES) for piece in batches]
    for reading in readings:
        with pytest.raises(InputError, match=message):
            reading.rows([each.account for each in readings])


def test_nulls_deep_inside() -> None:
    nested = pa.list_(FLOATS)
    bad = batch([[[1, 2]], [[1, None]], [None], None], [0] * 4, [0, 1, 2, 3], nested)
    with pytest.raises(InputError, match="3 of 4 rows have a null"):
        read([bad], CLASSES)
    with pytest.raises(InputError, match="different lengths in 2 rows: 1, 2"):
        read([batch([[[1, 2]], [[1]]], [0, 0], [0, 1], nested)], CLASSES)


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
                [pa.ListArray.from_arrays(offsets, values), ids, ids], names=["input0", "target0", "id"]
            )
            nonlocal peak
            peak = max(peak, pa.total_allocated_bytes() - before)

    cache = read(batches(), CLASSES)
    assert torch.equal(cache.targets[0], torch.arange(rows))
    assert peak < 1.1 * size
    assert pa.total_allocated_bytes() - before < 0.1 * size, "batches must be let go"
