"""Count of the rows that cannot be trained on. Each rank counts its own; then all counts are added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl_comm.data import arrow, vectors
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.errors import InputError

#: Test for :func:`arrow.find_rows`: true for bad elements.
ElementTest: TypeAlias = Callable[[pa.Array], NDArray[np.bool_]]

_LENGTH_ADVICE = (
    "Pad or cut them to one length n before fit, e.g. with F.slice(F.concat(column, F.array_repeat(F.lit(0), n)), 1, n)."
    " Or, for feature columns of arrays, give collate_fn, which pads them batch by batch, e.g."
    " functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)"
)

#: Description of values that are not finite, and the advice for them.
_NOT_FINITE = "a NaN or infinite value"
_IMPUTE_ADVICE = (
    "df.dropna() does not look inside vectors and arrays: fill the columns with pyspark.ml.feature.Imputer before they are"
    " assembled, or leave such rows out with VectorAssembler(handleInvalid='skip')"
)

#: Maximum number of distinct lengths of a column in a report.
_MAX_LENGTHS = 8


class RowInspection:
    """Report of the bad rows that one rank finds. Call :meth:`inspect` for each batch, then :meth:`report`."""

    def __init__(self, rows: RowFormat) -> None:
        self._format = rows
        self._rows = 0
        self._counts: dict[str, int] = {}
        self._examples: dict[str, float] = {}
        self._lengths: dict[str, list[set[int]]] = {}

    @property
    def has_bad_rows(self) -> bool:
        """True if there are rows that cannot be used."""
        return bool(self._counts) or any(len(level) > 1 for levels in self._lengths.values() for level in levels)

    def inspect(self, batch: pa.RecordBatch) -> None:
        """Count the bad rows of ``batch``."""
        self._rows += batch.num_rows
        for name, field in self._format.named_fields():
            self._inspect_column(field, batch[name])
        if self._format.validation is not None:
            self._count(f"a null in {self._format.validation}", arrow.is_null(batch["validation"]))
        if self._format.weight is not None:
            self._count(f"a null weight in {self._format.weight}", arrow.is_null(batch["weight"]))
            weights = batch["weight"].drop_null().to_numpy(zero_copy_only=False)
            self._count(f"a NaN or infinite weight in {self._format.weight}", ~np.isfinite(weights))
            self._count(f"a negative weight in {self._format.weight}", weights < 0)

    def _inspect_column(self, field: Field, column: pa.Array) -> None:
        nulls = arrow.find_rows(column, arrow.is_null)
        self._count(f"a null (or a null element) in {field}", nulls)
        usable = column.filter(pa.array(~nulls)) if nulls.any() else column
        if len(usable) == 0:
            return
        if pa.types.is_struct(usable.type):
            lengths = [vectors.distinct_sizes(usable)]
            usable = usable.flatten()[-1]
        else:
            lengths = arrow.distinct_lengths(usable)[1 if field.is_ragged else 0 :]
        column_lengths = self._lengths.setdefault(str(field), [set() for _ in lengths])
        if len(lengths) != len(column_lengths):  # only with decode, as a column has one type
            self._count(
                f"arrays of {len(lengths)} dimensions, others of {len(column_lengths)}, in {field}",
                np.ones(len(usable), bool),
            )
            return
        for level, new_lengths in zip(column_lengths, lengths, strict=True):
            level |= new_lengths
        shape = tuple(min(level, default=0) for level in column_lengths)
        if not field.fits(shape) and all(len(level) == 1 for level in column_lengths):
            takes = f"{math.prod(shape)} values in {field}, where inputShapes has {list(field.shape or ())}"
            self._count(takes, np.ones(len(usable), bool))
        for problem, test in _bad_value_tests(field):
            is_bad = arrow.find_rows(usable, test)
            self._count(f"{problem} in {field}", is_bad, arrow.find_first(usable, test) if is_bad.any() else None)

    def _count(self, problem: str, is_bad: NDArray[np.bool_], example: float | None = None) -> None:
        count = int(is_bad.sum())
        if count:
            self._counts[problem] = self._counts.get(problem, 0) + count
            if example is not None:
                self._examples.setdefault(problem, example)

    def report(self) -> dict[str, Any]:
        """Return the counts for :func:`check_reports`: JSON-able, and small however large the data."""
        lengths = {
            name: [sorted(level)[:_MAX_LENGTHS] for level in levels]
            for name, levels in self._lengths.items()
            if self._rows
        }
        return {"rows": self._rows, "counts": self._counts, "examples": self._examples, "lengths": lengths}


def check_reports(reports: Sequence[dict[str, Any]]) -> None:
    """Add up the bad rows of all ranks.

    :raises InputError: there are bad rows in any of the reports.
    """
    rows = sum(report["rows"] for report in reports)
    counts: dict[str, int] = {}
    examples: dict[str, float] = {}
    lengths: dict[str, list[set[int]]] = {}
    depths: dict[str, set[int]] = {}
    for report in reports:
        for problem, count in report["counts"].items():
            counts[problem] = counts.get(problem, 0) + count
        examples = {**report["examples"], **examples}
        for name, levels in report["lengths"].items():
            depths.setdefault(name, set()).add(len(levels))
            for level, new_lengths in zip(lengths.setdefault(name, [set() for _ in levels]), levels, strict=False):
                level.update(new_lengths)
    advice = "Drop, fill or convert these rows before fit, e.g. with df.dropna()"
    if any(problem.startswith(_NOT_FINITE) for problem in counts):
        advice = f"{advice}. {_IMPUTE_ADVICE}"
    suffixes = {problem: f", such as {example:g}" for problem, example in examples.items()}
    problems = [
        f"{count} of {rows} rows have {problem}{suffixes.get(problem, '')}" for problem, count in counts.items()
    ]
    for name, found_depths in depths.items():
        if len(found_depths) > 1:
            problems.append(f"{name} has arrays of {sorted(found_depths)} dimensions")
    for name, levels in lengths.items():
        if any(len(level) > 1 for level in levels):
            problems.append(f"{name} has arrays of different lengths in {rows} rows: {arrow.format_lengths(levels)}")
            advice = _LENGTH_ADVICE
    if problems:
        raise InputError("; ".join(problems) + f". {advice}")


def _bad_value_tests(field: Field) -> list[tuple[str, ElementTest]]:
    """Return a description and a test for each kind of value that the column must not have."""

    def not_finite(column: pa.Array) -> NDArray[np.bool_]:
        numbers = _to_numbers(column)
        return np.zeros(len(column), bool) if numbers is None or numbers.dtype.kind != "f" else ~np.isfinite(numbers)

    def not_representable(column: pa.Array) -> NDArray[np.bool_]:
        numbers = _to_numbers(column)
        if numbers is None or np.can_cast(numbers.dtype, field.type_of(numbers.dtype)):
            return np.zeros(len(column), bool)
        dtype = field.type_of(numbers.dtype)
        if dtype.kind == "f":
            return np.zeros(len(column), bool)
        limits = np.iinfo(dtype)
        finite = np.isfinite(numbers)
        is_bad: NDArray[np.bool_] = finite & (
            (np.floor(numbers) != numbers) | (numbers < limits.min) | (numbers > limits.max)
        )
        return is_bad

    tests: list[tuple[str, ElementTest]] = [
        (_NOT_FINITE, not_finite),
        (f"a value that is not an integer ({field.dtype})", not_representable),
    ]
    if field.limits is not None:
        low, high = field.limits

        def outside(column: pa.Array) -> NDArray[np.bool_]:
            numbers = _to_numbers(column)
            return np.zeros(len(column), bool) if numbers is None else (numbers < low) | (numbers > high)

        tests.append((f"a value outside of {low:g} to {high:g}, which the loss takes,", outside))
    return tests


def _to_numbers(column: pa.Array) -> NDArray[Any] | None:
    return None if arrow.is_list(column.type) else column.to_numpy(zero_copy_only=False)
