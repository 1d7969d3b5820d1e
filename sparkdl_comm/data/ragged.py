"""Feature columns whose rows differ in length, kept as one array of all elements.

The user's ``collate_fn`` makes batches of them. Vectors are kept in this form, too, unless all are dense. Only the rows
of a batch become a tensor each. ``collate_fn`` may also give several arguments of the model, as :class:`Arguments`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl_comm.data import vectors
from sparkdl_comm.data.fields import Field
from sparkdl_comm.errors import ModelError


@dataclass(frozen=True)
class Ragged:
    """Column on the CPU: row i is ``values[offsets[i] : offsets[i + 1]]``.

    ``values``: ``[elements, …]``. ``offsets``: int64 ``[rows + 1]``. ``field``: has the function that makes a batch.
    """

    field: Field
    values: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, field: Field, values: NDArray[Any], lengths: NDArray[np.int64]) -> Ragged:
        """Return a column from ``values``, the concatenated rows, and ``lengths``, the length of each row. Copies the
        values."""
        values = np.array(values, field.storage_type(values.dtype))  # a copy: Arrow's memory must not be written to
        return cls(field, torch.from_numpy(values), torch.from_numpy(offsets_of(lengths)))

    @classmethod
    def of_vectors(cls, field: Field, rows: torch.Tensor | Ragged) -> Ragged:
        """Return a column of Vectors as :mod:`sparkdl_comm.data.vectors` keeps them, in the same memory if possible.

        :param field: has the width of the Vectors.
        :param rows: such a column, or a tensor ``[rows, …]``.
        """
        if isinstance(rows, Ragged):
            return replace(rows, field=field)
        assert field.width is not None
        return cls(field, vectors.whole_words(field, rows), torch.arange(len(rows) + 1) * field.width)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> Ragged:
        """Return consecutive rows. They share this column's memory."""
        start, stop, _ = rows.indices(len(self))
        return Ragged(self.field, self.values, self.offsets[start : stop + 1])

    def take(self, index: torch.Tensor, device: torch.device | None) -> Any:
        """Return the model's argument for the rows at ``index`` (int64 ``[n]``), in that order.

        :raises ModelError: as :meth:`collate`.
        """
        return self.pick(index).to(device).collate()

    def pick(self, index: torch.Tensor) -> Ragged:
        """Return a copy of the rows at ``index`` (int64 ``[n]``), in that order."""
        starts, stops = self.offsets[index], self.offsets[index + 1]
        pieces = [self.values[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        values = torch.cat(pieces) if pieces else self.values[:0]
        return Ragged(self.field, values, torch.from_numpy(offsets_of((stops - starts).numpy())))

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate the rows of all ``parts``. There is at least one, and the offsets of each start at 0."""
        lengths = torch.cat([part.lengths for part in parts])
        values = torch.cat([part.values for part in parts])
        return cls(parts[0].field, values, torch.from_numpy(offsets_of(lengths.numpy())))

    def to(self, device: torch.device | None) -> Ragged:
        """Return the same column with its elements on ``device``."""
        return replace(self, values=self.values.to(device))

    def collate(self) -> Any:
        """Return the model's argument for all rows. The offsets must start at 0.

        :raises ModelError: there are no rows, or ``collate_fn`` raised.
        """
        if self.field.width is not None:
            return vectors.to_tensor(self.field, self.values, self.lengths)
        if not len(self):
            raise ModelError(
                f"collate_fn: there are no rows of {self.field} on this rank in this step. The model has collectives"
                " (SyncBatchNorm), so all ranks must run it in each step. Set a larger batchSize, or fewer num_workers"
            )
        assert self.field.collate is not None
        rows = list(torch.split(self.values, self.lengths.tolist()))
        try:
            return self.field.collate(rows)
        except Exception as error:  # whatever the user's function raises
            raise ModelError(
                f"collate_fn raised {type(error).__name__} for {len(rows)} rows of {self.field}, of {min(map(len, rows))} to"
                f" {max(map(len, rows))} elements: {error}"
            ) from error

    @property
    def lengths(self) -> torch.Tensor:
        """Length of each row, int64 ``[rows]``."""
        return self.offsets.diff()


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offsets of rows with these lengths, int64 ``[rows + 1]``: all starts, and the end of the last row."""
    return np.append(0, np.cumsum(lengths, dtype=np.int64))


class Arguments:
    """Positional and keyword arguments for the model's ``forward``, returned by a ``collate_fn``.

    ``Arguments(padded, lengths)`` calls ``model(padded, lengths)``. ``Arguments(**encoded)`` calls
    ``model(**encoded)``.

    ``positional``: tuple of the positional arguments. ``keywords``: keyword arguments by name.
    """

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        self.positional = positional
        self.keywords = keywords


def call(module: Callable[..., Any], inputs: Iterable[Any]) -> Any:
    """Call ``module`` with the inputs of a batch and return its output.

    If the output is a mapping whose attribute ``logits`` is a tensor, such as a Hugging Face ModelOutput, return the logits.
    A plain dict has no such attribute, so the loss gets all of it.

    :param inputs: one per feature column, in order: a tensor ``[rows, …]``, or the return value of ``collate_fn``.
    :raises TypeError: two columns give the same keyword, or the arguments do not match the signature of ``forward``.
    """
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument in inputs:
        if not isinstance(argument, Arguments):
            positional.append(argument)
            continue
        duplicates = sorted(set(keywords) & set(argument.keywords))
        if duplicates:
            raise TypeError(
                f"collate_fn returned Arguments({duplicates[0]}=...) for two feature columns, but forward takes it once."
                f" Return {duplicates[0]} by position: forward gets the positional arguments of all columns in order"
            )
        positional += argument.positional
        keywords |= argument.keywords
    output = module(*positional, **keywords)
    logits = getattr(output, "logits", None) if isinstance(output, Mapping) else None
    return logits if isinstance(logits, torch.Tensor) else output
