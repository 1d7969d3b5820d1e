"""Rows of different lengths: kept, put in order, cut into batches by collate_fn, in training and in transform."""

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_sequence

from sparkdl_comm.data.cache import RankRows, RowReader
from sparkdl_comm.data.fields import Collate, Field, RowFormat
from sparkdl_comm.data.ragged import Arguments, call
from sparkdl_comm.errors import InputError, ModelError
from sparkdl_comm.ml.prediction import Predictor
from sparkdl_comm.ml.scoring import Scoring
from sparkdl_comm.train.objective import Objective

PAD = functools.partial(pad_sequence, batch_first=True)
PACK = functools.partial(pack_sequence, enforce_sorted=False)
CPU = torch.device("cpu")
LABEL = Field("labelCol", "y", "int64", ())
INTS, FLOATS = pa.list_(pa.int32()), pa.list_(pa.float32())
FRAMES = pa.list_(FLOATS)


def field(collate: Collate = PAD, **more: Any) -> Field:
    return Field("featuresCol", "x", collate=collate, **more)


def batch(rows: list, ids: list[int], kind: pa.DataType = FLOATS, **more: pa.Array) -> pa.RecordBatch:
    """Labels are the ids."""
    columns = {"input0": pa.array(rows, kind), "target0": pa.array(ids), "id": pa.array(ids, pa.int64()), **more}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def read(batches: Iterable[pa.RecordBatch], x: Field, **more: str) -> RankRows:
    reading = RowReader(batches, RowFormat((x,), (LABEL,), **more))
    return reading.rows([reading.account])


def test_many_batches_in_any_order() -> None:
    random = np.random.default_rng(0)
    rows = [random.standard_normal(random.integers(0, 6)).astype(np.float32) for _ in range(50)]
    order = random.permutation(50)
    parts = [batch([rows[i] for i in part], part.tolist()) for part in np.array_split(order, 7)]
    cache = read(parts, field(list)).training
    assert cache.rows == 50
    index = torch.from_numpy(random.permutation(50))
    taken = cache.take(index, CPU)
    assert (taken.rows, taken.targets[0].tolist()) == (50, index.tolist())
    assert all(row.tolist() == rows[i].tolist() for row, i in zip(taken.inputs[0], index.tolist(), strict=True))
    taken.inputs[0][0].fill_(7)
    assert cache.take(index[:1], CPU).inputs[0][0].tolist() == rows[index[0]].tolist(), "a batch has memory of its own"


def test_padded_and_packed() -> None:
    rows = [batch([[1, 2, 3], [4]], [1, 0], INTS)]
    everything = torch.arange(2)
    assert torch.equal(
        read(rows, field()).training.take(everything, CPU).inputs[0], torch.tensor([[4.0, 0, 0], [1, 2, 3]])
    )
    looked_up = read(rows, field(embeds=True)).training.take(everything, CPU).inputs[0]
    assert torch.equal(looked_up, torch.tensor([[4, 0, 0], [1, 2, 3]]))
    packed = read(rows, field(PACK)).training.take(everything, CPU)
    assert isinstance(packed.inputs[0], PackedSequence)
    assert packed.rows == 2, "although a PackedSequence is a tuple of 4"


def test_sequences_of_vectors() -> None:
    rows = [batch([[[1, 2], [3, 4]], []], [0, 1], FRAMES), batch([[[5, 6]]], [2], FRAMES)]
    padded = read(rows, field()).training.take(torch.tensor([2, 1, 0]), CPU).inputs[0]
    assert padded.tolist() == [[[5, 6], [0, 0]], [[0, 0], [0, 0]], [[1, 2], [3, 4]]]
    with pytest.raises(InputError, match=r"different lengths in 1 rows: 1, 2\. Pad"):
        read([batch([[[1, 2], [3]]], [0], FRAMES)], field())


@pytest.mark.parametrize(
    ("rows", "labels"),
    [([[0.0, 1.0], [-0.0, 1.0], [2.0], [0.0, 1.0], []], [0, 1, 2, 0, 1]), ([[0.0, 1.0], [-0.0, 1.0]], [0, 0])],
)
def test_rows_of_one_id_that_are_not_equal_do_not_depend_on_the_order(rows: list, labels: list[int]) -> None:
    found = set()
    for order in itertools.permutations(range(len(rows))):
        parts = [
            pa.RecordBatch.from_arrays(
                [pa.array([rows[i]], FLOATS), pa.array([labels[i]]), pa.array([5], pa.int64())],
                names=["input0", "target0", "id"],
            )
            for i in order
        ]
        taken = read(parts, field(list)).training.take(torch.arange(len(rows)), CPU)
        pairs = zip(taken.inputs[0], taken.targets[0].tolist(), strict=True)
        found.add(tuple((row.numpy().tobytes(), label) for row, label in pairs))
    (pairs,) = found
    given = [(np.array(row, np.float32).tobytes(), label) for row, label in zip(rows, labels, strict=True)]
    assert sorted(pairs) == sorted(given), "labels move with their rows"


def test_weights_validation_and_a_rank_without_rows() -> None:
    more = {"weight": pa.array([1.0, 2.0, 3.0]), "validation": pa.array([True, False, False])}
    whole = batch([[1], [2, 3], [4, 5, 6]], [0, 1, 2], INTS, **more)
    names = {"weight": "w", "validation": "validationIndicatorCol 'v'"}
    rows = read([whole], field(embeds=True), **names)
    assert rows.training.take(torch.tensor([1, 0]), CPU).inputs[0].tolist() == [[4, 5, 6], [2, 3, 0]]
    assert rows.validation.take(torch.tensor([0]), CPU).inputs[0].tolist() == [[1]]
    form = RowFormat((field(embeds=True),), (LABEL,), **names)
    some, none = RowReader([whole], form), RowReader([], form)
    empty = none.rows([some.account, none.account]).training
    assert (empty.rows, empty.inputs[0].values.dtype) == (0, torch.int64)
    with pytest.raises(ModelError, match="collate_fn: there are no rows of featuresCol 'x' .* a larger batchSize"):
        empty.take(torch.arange(0), CPU)


def test_a_rank_with_empty_lists_only() -> None:
    """Its rows have the width that other ranks' rows have."""
    form = RowFormat((field(),), (LABEL,))
    kind = pa.list_(pa.list_(pa.float64()))
    full = RowReader([batch([[[1, 2, 3]], []], [0, 1], kind)], form)
    empty, none = RowReader([batch([[], []], [2, 3], kind)], form), RowReader([], form)
    for order in ([full, empty, none], [none, empty, full]):
        accounts = [each.account for each in order]
        columns = [each.rows(accounts).training.inputs[0] for each in order]
        assert {(column.values.dtype, column.values.shape[1:]) for column in columns} == {(torch.float32, (3,))}
    rows = empty.rows([full.account, empty.account]).training
    assert rows.take(torch.arange(2), CPU).inputs[0].shape == (2, 0, 3)


def test_a_collate_fn_that_raises() -> None:
    rows = read([batch([[1], [2, 3]], [0, 1])], field(torch.stack)).training
    with pytest.raises(
        ModelError, match="collate_fn raised RuntimeError for 2 rows of featuresCol 'x', of 1 to 2 elements: stack"
    ):
        rows.take(torch.arange(2), CPU)


def letters(text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


def test_decoded_rows() -> None:
    texts = batch(["abc", "b"], [0, 1], pa.string()), batch(["ca"], [2], pa.string())
    x = field(decode=letters, dtype="int64")
    assert read(texts, x).training.take(torch.tensor([1, 0, 2]), CPU).inputs[0].tolist() == [
        [1, 0, 0],
        [0, 1, 2],
        [2, 0, 0],
    ]
    with pytest.raises(InputError, match="1 of 3 rows have a null"):
        read([batch(["abc", None, "b"], [0, 1, 2], pa.string())], x)
    for decode, shapes in ((len, r"\[\]\."), (lambda text: np.zeros((1, len(text))), r"\[1, 1\], \[1, 3\]\.")):
        with pytest.raises(
            InputError, match=f"decode of featuresCol 'x' returns arrays of shapes {shapes} With collate_fn"
        ):
            read([texts[0]], field(decode=decode))


class Packed(torch.nn.Module):
    """The last state of a recurrent layer, per row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.GRU(1, 3, batch_first=True)

    def forward(self, rows: PackedSequence) -> torch.Tensor:
        return self.layer(rows)[1][0]


def packed(rows: list[torch.Tensor]) -> PackedSequence:
    return PACK([row.unsqueeze(1) for row in rows])


def test_what_collate_fn_makes_reaches_loss_and_weights() -> None:
    """No tensor, so that nothing may look at its shape."""
    module = Packed()
    rows = [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]
    cache = read([batch(rows, [0, 1, 2], weight=pa.array([1.0, 2.0, 3.0]))], field(packed), weight="w").training
    loss = functools.partial(torch.nn.functional.cross_entropy, reduction="none")
    output, value = Objective(loss, "fp32", CPU, [field(packed)])(module, cache.take(torch.arange(3), CPU))
    alone = torch.cat([module(packed([torch.tensor(row)])) for row in rows])
    assert torch.allclose(output, alone)
    weights = torch.tensor([0.5, 1.0, 1.5])
    assert torch.allclose(value, (loss(alone, torch.arange(3)) * weights).mean())
    wrong = read([batch(rows, [0, 1, 2])], field(PACK)).training.take(torch.arange(3), CPU)
    with pytest.raises(RuntimeError, match="input must have 2 dimensions|dimension"):
        Objective(loss, "fp32", CPU, [field(PACK)])(module, wrong)


def with_mask(rows: list[torch.Tensor]) -> Arguments:
    padded = PAD(rows)
    return Arguments(padded, mask=PAD([torch.ones_like(row) for row in rows]), scale=2.0)


class Masked(torch.nn.Module):
    def forward(self, rows: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        return scale * (rows * mask).sum(1)


def test_collate_fn_makes_several_arguments() -> None:
    """In training and in transform."""
    rows = [[1.0, 2.0], [3.0]]
    cache = read([batch(rows, [0, 1])], field(with_mask)).training
    output, _ = Objective(lambda output, target: output.mean(), "fp32", CPU, [field(with_mask)])(
        Masked(), cache.take(torch.arange(2), CPU)
    )
    assert output.tolist() == [6.0, 6.0]
    predictor = Predictor(Masked(), [field(with_mask)], 2, Scoring("value", None, ("prediction",)), "cpu")
    (scored,) = predictor.predict(iter([(pa.array(rows).to_pandas(),)]))
    assert scored[0].tolist() == [6.0, 6.0]


def test_two_columns_give_the_same_argument() -> None:
    with pytest.raises(TypeError, match=r"Arguments\(mask=...\) for two feature columns.* Return mask by position"):
        call(Masked(), [Arguments(torch.ones(1, 1), mask=1.0), Arguments(mask=2.0)])
    assert call(torch.add, [Arguments(torch.ones(1)), Arguments(torch.ones(1))]) == 2, "as the message advises"


class Total(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.flatten(1).sum(1)


@pytest.mark.parametrize(
    ("column", "x", "expected"),
    [
        (pa.array([[1, 2, 3], [4], []], INTS), field(), [6, 4, 0]),
        (pa.array([[[1, 2]], [], [[1, 2], [3, 4]]], FRAMES), field(), [3, 0, 10]),
        (pa.array([[], []], FRAMES), field(), [0, 0]),
        (pa.array(["abc", "b", "c"]), field(decode=letters), [3, 1, 2]),
    ],
    ids=["numbers", "vectors", "no vectors", "decoded"],
)
def test_transform(column: pa.Array, x: Field, expected: list[float]) -> None:
    """Two rows a time: the third is padded to another length."""
    predictor = Predictor(Total(), [x], 2, Scoring("value", None, ("prediction",)), "cpu")
    (scored,) = predictor.predict(iter([(column.to_pandas(),)]))
    assert scored[0].tolist() == expected


def test_transform_refuses_inner_lengths_that_differ() -> None:
    predictor = Predictor(Total(), [field()], 2, Scoring("value", None, ("prediction",)), "cpu")
    with pytest.raises(InputError, match="featuresCol 'x': arrays of different lengths in 1 rows: 1, 2"):
        next(predictor.predict(iter([(pa.array([[[1], [1, 2]]], FRAMES).to_pandas(),)])))
