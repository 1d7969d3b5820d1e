"""Sparsifier: a rank's largest elements of a part of the gradient as bytes, and the sum of all ranks' bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from sparkdl_comm.compress.feedback import Feedback
from sparkdl_comm.compress.flat_range import FlatRange
from sparkdl_comm.compress.selection import Operator, operator
from sparkdl_comm.compress.wire import VALUE_TYPES, SparseFormat
from sparkdl_comm.conf import Compression
from sparkdl_comm.conf.groups import CompressionConf

#: Function that returns a context for selecting and for adding up, such as one that measures their time.
SpanFactory = Callable[[], AbstractContextManager[object]]


class Sparsifier:
    """Selection and error feedback of one rank.

    :param random: CPU generator for the operator's random choices.
    :param dtype: type of the values on the network.
    :param feedback: keeps the residual.
    """

    def __init__(
        self,
        select: Operator,
        random: torch.Generator,
        dtype: torch.dtype,
        feedback: Feedback,
        span: SpanFactory = nullcontext,
    ) -> None:
        self._select, self._random, self._dtype, self._span = select, random, dtype, span
        self.feedback = feedback

    @classmethod
    def of(
        cls, compression: Compression, conf: CompressionConf, rank: int, span: SpanFactory = nullcontext
    ) -> Sparsifier:
        """Return the sparsifier for these settings. Ranks have different seeds, so random choices differ between them."""
        return cls(
            operator(compression.operator),
            torch.Generator().manual_seed(rank),
            VALUE_TYPES[conf.values],
            Feedback(conf.momentum, conf.feedback),
            span,
        )

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the residual, and the state of the random generator.

        The tensors of the residual are not copied.
        """
        return {**self.feedback.state(), "random": {"generator": self._random.get_state()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a result of :meth:`state`, whose tensors may be on any device.

        :raises PersistenceError: as :meth:`Feedback.load_state`.
        """
        self.feedback.load_state(state)
        self._random.set_state(state["random"]["generator"].cpu())

    def make_format(self, part: FlatRange, density: float) -> SparseFormat:
        """Return the format of the part's bytes. One flag per parameter tells whether this rank used it."""
        return SparseFormat.of_density(part.elements, density, self._dtype, len(part.pieces))

    def encode(self, part: FlatRange, gradient: torch.Tensor, density: float, scale: float) -> torch.Tensor:
        """Select elements, keep the residual, and return the selection as uint8 ``[format.nbytes]``.

        :param gradient: float32, of the part, with the scale; not changed. An unused parameter is -0.0.
        """
        with self._span():
            indices, values, used = self._select_elements(part, gradient, density, scale)
            return self.make_format(part, density).encode(indices, values, used)

    def sparsify(self, part: FlatRange, gradient: torch.Tensor, density: float, scale: float) -> None:
        """Select elements, keep the residual, and set the gradient to 0, in place, where elements are not selected.

        :param gradient: float32, of the part, with the scale. An unused parameter stays -0.0.
        """
        indices, values, used = self._select_elements(part, gradient, density, scale)
        gradient.zero_()
        gradient[indices] = values + 0.0
        for piece in part.select(~used):
            gradient[piece] = -0.0

    def _select_elements(
        self, part: FlatRange, gradient: torch.Tensor, density: float, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the indices and the values (with the scale) of the selection, and which parameters were used."""
        sparse_format = self.make_format(part, density)
        used = part.find_used(gradient)
        unused = part.select(~used)
        gathered = self.feedback.add_residual(part.start, gradient, scale, unused)
        indices = self._select(gathered, sparse_format.entries, self._random)
        values = gathered[indices] * scale
        self.feedback.record_sent(part.start, indices, sparse_format.round_values(values), scale, unused)
        return indices, values, used

    def sum_selections(
        self, part: FlatRange, packed: Sequence[torch.Tensor], density: float, result: torch.Tensor
    ) -> None:
        """Overwrite ``result``, float32 of the part, with the sum of the encoded selections, added in their order.

        Parameters that no rank used are -0.0. No other element is -0.0.

        :param packed: for each rank, uint8 with at least ``format.nbytes`` elements.
        :raises ProtocolError: an entry does not encode this part.
        """
        sparse_format = self.make_format(part, density)
        with self._span():
            result.zero_()
            used = torch.zeros(len(part.pieces), dtype=torch.bool, device=result.device)
            for one in packed:
                indices, values, flags = sparse_format.decode(one[: sparse_format.nbytes])
                # A rank's indices are distinct, so terms are added in the order of the ranks.
                result.index_add_(0, indices, values)
                used |= flags
            for piece in part.select(~used):
                result[piece] = -0.0
