"""Feature columns whose rows differ in length: kept as one array of all elements, and made a batch of by the user's
``collate_fn``. Sparse Vectors are kept so too. There is never a tensor per row, but for the rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sparkdl_comm.data import sparse
from sparkdl_comm.data.fields import Field
from sparkdl_comm.errors import ModelError


@dataclass(frozen=True)
class Ragged:
    """A column on the CPU: row i is ``values[offsets[i] : offsets[i + 1]]``.

    ``values``: ``[elements, …]``. ``offsets``: int64 ``[rows + 1]``. ``field``: has the function that makes a batch.
    """

    field: Field
    values: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, field: Field, values: np.ndarray, lengths: np.ndarray) -> Ragged:
        """``values``: all rows, one after the other, of any type; ``lengths``: of each."""
        values = np.array(values, field.kept_type(values.dtype))  # a copy: Arrow's memory must not be written to
        return cls(field, torch.from_numpy(values), torch.from_numpy(offsets_of(lengths)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> Ragged:
        """Some rows, one after the other; shares their memory."""
        start, stop, _ = rows.indices(len(self))
        return Ragged(self.field, self.values, self.offsets[start : stop + 1])

    def take(self, index: torch.Tensor, device: torch.device | None) -> Any:
        """What the model gets for the rows at ``index`` (int64 ``[n]``), in its order; raises what :meth:`collated` does."""
        return self.pick(index).to(device).collated()

    def pick(self, index: torch.Tensor) -> Ragged:
        """The rows at ``index`` (int64 ``[n]``), in its order, in memory of their own."""
        starts, stops = self.offsets[index], self.offsets[index + 1]
        found = [self.values[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        values = torch.cat(found) if found else self.values[:0]
        return Ragged(self.field, values, torch.from_numpy(offsets_of((stops - starts).numpy())))

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """The rows of all ``parts``, at least one, whose rows lie one after the other from their first elements on."""
        lengths = torch.cat([part.lengths for part in parts])
        values = torch.cat([part.values for part in parts])
        return cls(parts[0].field, values, torch.from_numpy(offsets_of(lengths.numpy())))

    def to(self, device: torch.device | None) -> Ragged:
        """The same with its elements on ``device``."""
        return replace(self, values=self.values.to(device))

    def collated(self) -> Any:
        """What the model gets for all rows, which lie one after the other from the first element on.

        :raises ModelError: no rows, or ``collate_fn`` raised.
        """
        if self.field.width is not None:
            return sparse.tensor(self.field, self.values, self.lengths)
        if not len(self):
            raise ModelError(
                f"collate_fn: there are no rows of {self.field} to call it with on this rank in this step, and the model has"
                " collectives (SyncBatchNorm), which all ranks take part in: set a larger batchSize, or fewer num_workers"
            )
        assert self.field.collate is not None
        rows = list(self.values.split(self.lengths.tolist()))
        try:
            return self.field.collate(rows)
        except Exception as error:  # whatever the user's function raises
            raise ModelError(
                f"collate_fn raised {type(error).__name__} for {len(rows)} rows of {self.field}, of {min(map(len, rows))} to"
                f" {max(map(len, rows))} elements: {error}"
            ) from error

    @property
    def lengths(self) -> torch.Tensor:
        """Of each row, int64 ``[rows]``."""
        return self.offsets.diff()


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Where rows of these lengths begin, and where the last one ends: int64 ``[rows + 1]``."""
    return np.append(0, np.cumsum(lengths, dtype=np.int64))
