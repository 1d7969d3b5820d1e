"""A rank's largest elements of a part of the gradient as bytes, and all ranks' bytes as their sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from sparkdl_comm.compress.feedback import Feedback
from sparkdl_comm.compress.part import Part
from sparkdl_comm.compress.selection import Operator, operator
from sparkdl_comm.compress.wire import VALUE_TYPES, SparseFormat
from sparkdl_comm.conf import CommConf, Compression

#: What is put around selecting, and around adding up, such as a watch.
Span = Callable[[], AbstractContextManager[object]]


class Sparsifier:
    """Selection and feedback of one rank.

    :param random: draws what the operator draws; on the CPU.
    :param dtype: of values on the network.
    :param feedback: keeps what is left out.
    """

    def __init__(
        self,
        select: Operator,
        random: torch.Generator,
        dtype: torch.dtype,
        feedback: Feedback,
        span: Span = nullcontext,
    ) -> None:
        self._select, self._random, self._dtype, self._span = select, random, dtype, span
        self.feedback = feedback

    @classmethod
    def of(cls, compression: Compression, conf: CommConf, rank: int, span: Span = nullcontext) -> Sparsifier:
        """As the settings say. Where selection is random, each rank has another seed: they are not to leave out the same."""
        return cls(
            operator(compression.operator),
            torch.Generator().manual_seed(rank),
            VALUE_TYPES[conf.compression_values],
            Feedback(conf.compression_momentum, conf.compression_feedback),
            span,
        )

    def state(self) -> dict[str, Any]:
        """For checkpoints: what is left out, and where random selections go on. Tensors that are left out are not copied."""
        return {**self.feedback.state(), "random": {"generator": self._random.get_state()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned, on whichever device its tensors are.

        :raises PersistenceError: as :meth:`Feedback.load_state`.
        """
        self.feedback.load_state(state)
        self._random.set_state(state["random"]["generator"].cpu())

    def format(self, part: Part, density: float) -> SparseFormat:
        """Of the part's bytes, with a flag for each parameter."""
        return SparseFormat.of_density(part.elements, density, self._dtype, len(part.pieces))

    def encode(self, part: Part, gradient: torch.Tensor, density: float, scale: float) -> torch.Tensor:
        """Selects, and keeps what is left out. Returns uint8 ``[format.nbytes]``.

        :param gradient: float32, of the part, with the scale; is only read. A parameter that was not used is -0.0.
        """
        with self._span():
            chosen, values, used = self._choose(part, gradient, density, scale)
            return self.format(part, density).encode(chosen, values, used)

    def thin(self, part: Part, gradient: torch.Tensor, density: float, scale: float) -> None:
        """Selects, and keeps what is left out: in place, the gradient is 0 where elements do not travel. A parameter that was
        not used stays -0.0.

        :param gradient: float32, of the part, with the scale.
        """
        chosen, values, used = self._choose(part, gradient, density, scale)
        gradient.zero_()
        gradient[chosen] = values + 0.0
        for piece in part.that(~used):
            gradient[piece] = -0.0

    def _choose(
        self, part: Part, gradient: torch.Tensor, density: float, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Positions and values of what travels, these with the scale; and which parameters were used."""
        wanted = self.format(part, density)
        used = part.used(gradient)
        unused = part.that(~used)
        gathered = self.feedback.add(part.start, gradient, scale, unused)
        chosen = self._select(gathered, wanted.entries, self._random)
        values = gathered[chosen] * scale
        self.feedback.take(part.start, chosen, wanted.rounded(values), scale, unused)
        return chosen, values, used

    def add_up(self, part: Part, packed: Sequence[torch.Tensor], density: float, result: torch.Tensor) -> None:
        """Overwrites ``result``, float32 of the part, with the sum of what was encoded, added in its order. What no rank used
        is -0.0, all else never is.

        :param packed: of each rank, uint8 ``[format.nbytes]`` at least.
        :raises ProtocolError: one of them is no such part.
        """
        wanted = self.format(part, density)
        with self._span():
            result.zero_()
            used = torch.zeros(len(part.pieces), dtype=torch.bool, device=result.device)
            for one in packed:
                indices, values, flags = wanted.decode(one[: wanted.nbytes])
                result.index_add_(0, indices, values)  # indices are different, so the order is that of the ranks
                used |= flags
            for piece in part.that(~used):
                result[piece] = -0.0
