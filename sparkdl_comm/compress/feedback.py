"""Error feedback and momentum correction: elements that a step does not send are added to the next step's gradient.

Without momentum, for a part of the gradient g in each step::

    a = residual + g;  send the k largest of a;  residual = a where not sent, else the rounding error

With momentum m (Deep Gradient Compression, Lin et al. 2018, sections 3.1 and 3.2), the velocity is accumulated instead.
It is cleared where elements are sent. So an optimizer without momentum does what an optimizer with momentum would do::

    u = m u + g;  a = residual + u;  send the k largest of a;  residual as above;  u = 0 where sent

Parameters that this rank did not use in a step have the gradient -0.0. They keep their residual and send -0.0.

A step that is skipped, because fp16 overflowed on some rank, leaves everything as it was. Gradients are multiplied by a
scale, such as the loss scale, which may change from step to step. The residual is kept without the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from sparkdl_comm.errors import PersistenceError


class FlatRange(NamedTuple):
    """Elements from ``start`` to ``stop`` of the flat vector.

    ``pieces``: for each parameter with elements in the range, their slice, counted from ``start``.
    """

    start: int
    stop: int
    pieces: tuple[slice, ...]

    @property
    def elements(self) -> int:
        return self.stop - self.start

    @classmethod
    def of(cls, start: int, stop: int, bounds: Sequence[int]) -> FlatRange:
        """Return the part. ``bounds``: starts of the parameters in the flat vector, ascending."""
        inside = [start, *(bound for bound in bounds if start < bound < stop), stop]
        pieces = zip(inside, inside[1:], strict=False)
        return cls(start, stop, tuple(slice(a - start, b - start) for a, b in pieces if a < b))

    def find_used(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return bool ``[pieces]``: for each piece, True if a step used its parameter.

        ``gradient``, float32 of the part, is -0.0 for unused parameters; see ``space/flat.py``. For a used Embedding
        with sparse=True, single rows may be -0.0, even the first one.
        """
        firsts = gradient[
            torch.tensor([piece.start for piece in self.pieces], dtype=torch.int64, device=gradient.device)
        ]
        used = (firsts != 0) | ~firsts.signbit()
        for number in (~used).nonzero().flatten().tolist():
            piece = gradient[self.pieces[number]]
            used[number] = ((piece != 0) | ~piece.signbit()).any()
        return used

    def select(self, mask: torch.Tensor) -> list[slice]:
        """Return the pieces for which ``mask``, bool ``[pieces]``, is True."""
        return [self.pieces[number] for number in mask.nonzero().flatten().tolist()]

    def find_unused(self, gradient: torch.Tensor) -> list[slice]:
        """Return the pieces of unused parameters."""
        return self.select(~self.find_used(gradient))


#: Function that returns the part of the flat vector from one element to another.
RangeFactory = Callable[[int, int], FlatRange]


@dataclass
class _Residual:
    """Residual and velocity of one part, each in two buffers: a step writes the next one, and a skipped step keeps the
    old one.
    """

    residual: torch.Tensor
    next_residual: torch.Tensor
    velocity: torch.Tensor | None = None
    next_velocity: torch.Tensor | None = None
    #: True if the residual is zero and there is no velocity.
    is_clear: bool = True
    #: Value of :attr:`is_clear` after :meth:`Feedback.settle`, if the step is applied.
    will_be_clear: bool = False
    is_changed: bool = False
    #: Slices without a gradient on this rank, between :meth:`Feedback.flush_into` and :meth:`Feedback.update_velocity`.
    unused: Sequence[slice] = ()


class Feedback:
    """Residuals of one rank. The start of a part in the flat vector identifies it.

    The order of the calls, for each part and step: :meth:`add_residual`, perhaps
    :meth:`record_sent` or :meth:`record_sent_values`; or :meth:`flush_into` and, after the sum,
    :meth:`update_velocity`. Then :meth:`settle` once.

    :param momentum: factor of momentum correction; 0 for none.
    :param keeps_residual: False to drop the elements that are not sent.
    """

    def __init__(self, momentum: float = 0.0, keeps_residual: bool = True) -> None:
        self._momentum, self._keeps_residual = momentum, keeps_residual
        self._parts: dict[int, _Residual] = {}

    def add_residual(
        self, start: int, gradient: torch.Tensor, scale: float, unused: Sequence[slice] = ()
    ) -> torch.Tensor:
        """Return the sum of the gradient and the residual, without the scale, for selection.

        The result is this object's memory, float32 ``[n]``. It is valid until :meth:`settle`, and callers must not
        change it.

        :param gradient: float32 ``[n]``, with the scale; not changed.
        :param unused: slices of parameters without a gradient on this rank. They are -0.0 in the result.
        """
        part = self._part(start, gradient)
        part.is_changed, part.will_be_clear = True, False
        if part.velocity is None:
            torch.add(part.residual, gradient, alpha=1 / scale, out=part.next_residual)
        else:
            assert part.next_velocity is not None
            torch.mul(part.velocity, self._momentum, out=part.next_velocity)
            part.next_velocity.add_(gradient, alpha=1 / scale)
            torch.add(part.residual, part.next_velocity, out=part.next_residual)
        for piece in unused:
            part.next_residual[piece] = -0.0
        return part.next_residual

    def record_sent(
        self, start: int, indices: torch.Tensor, sent: torch.Tensor, scale: float, unused: Sequence[slice] = ()
    ) -> None:
        """Record the elements that are sent.

        :param indices: int64 ``[k]``, distinct, within the part.
        :param sent: float32 ``[k]``: their values as other ranks receive them, with the scale.
        :param unused: as in :meth:`add_residual`.
        """
        part = self._parts[start]
        if self._keeps_residual:
            part.next_residual[indices] -= sent / scale
        else:
            part.next_residual.zero_()
        if part.next_velocity is not None:
            part.next_velocity[indices] = 0.0
        for piece in unused:
            part.next_residual[piece] = part.residual[piece]
            if part.velocity is not None and part.next_velocity is not None:
                part.next_velocity[piece] = part.velocity[piece]

    def record_sent_values(self, start: int, sent: torch.Tensor, unused: Sequence[slice] = ()) -> None:
        """Record the values that are sent of the result of :meth:`add_residual`. Momentum is not supported.

        :param sent: float32 ``[n]``: the values sent, without the scale.
        :param unused: as in :meth:`add_residual`.
        """
        part = self._parts[start]
        part.next_residual -= sent
        for piece in unused:
            part.next_residual[piece] = part.residual[piece]

    def is_clear(self, start: int) -> bool:
        """Return whether nothing is kept for this part, so that :meth:`flush_into` has nothing to do.

        That saves reading and writing the gradient several times in each step of a dense run.
        """
        return not self._momentum and (start not in self._parts or self._parts[start].is_clear)

    def flush_into(self, start: int, gradient: torch.Tensor, scale: float, unused: Sequence[slice] = ()) -> None:
        """Add the residual to the gradient, in place, and clear it: all elements are sent.

        With momentum the velocity is sent, too, and a call of :meth:`update_velocity` must follow.
        """
        if self.is_clear(start):
            return
        part = self._part(start, gradient)
        part.is_changed, part.unused = True, unused
        part.will_be_clear = part.velocity is None and not any(part.residual[piece].any() for piece in unused)
        part.next_residual.zero_()
        if part.velocity is not None:
            gradient.add_(part.velocity, alpha=scale * self._momentum)
        gradient.add_(part.residual, alpha=scale)
        for piece in unused:
            gradient[piece] = -0.0
            part.next_residual[piece] = part.residual[piece]

    def update_velocity(
        self, start: int, total: torch.Tensor, scale: float, contributors: int, unused: Sequence[slice] = ()
    ) -> None:
        """Update the velocity after a dense step from the sum over all ranks.

        Each rank that has a velocity of this part keeps an equal share of the sum. So the velocities add up to the
        optimizer's momentum.

        :param total: float32 ``[n]``: the sum, with the scale; not changed.
        :param contributors: number of ranks that have this part.
        :param unused: slices of parameters without a gradient on any rank.
        """
        part = self._parts.get(start)
        if part is None or part.velocity is None or part.next_velocity is None:
            return
        torch.mul(total, 1 / (scale * contributors), out=part.next_velocity)
        part.next_velocity -= part.residual  # sent, too, but no velocity: only the sum of both is known
        for piece in part.unused:  # this rank sent nothing here
            part.next_velocity[piece] += part.residual[piece] + part.velocity[piece]
        for piece in unused:
            part.next_velocity[piece] = part.velocity[piece]

    def forget(self, start: int, stop: int) -> None:
        """Drop the residuals of the parts that begin in this range."""
        for place in [place for place in self._parts if start <= place < stop]:
            del self._parts[place]

    def settle(self, applied: bool) -> None:
        """End the step of all parts. ``applied`` is False if it was skipped."""
        for part in self._parts.values():
            if part.is_changed and applied:
                part.residual, part.next_residual = part.next_residual, part.residual
                part.velocity, part.next_velocity = part.next_velocity, part.velocity
                part.is_clear = part.will_be_clear
            part.is_changed = False

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint. Tensors are not copied."""
        return {
            "left": {str(start): part.residual for start, part in self._parts.items()},
            "velocity": {str(s): part.velocity for s, part in self._parts.items() if part.velocity is not None},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a result of :meth:`state`.

        :raises PersistenceError: the state has momentum and this object has none, or the reverse.
        """
        if state["left"] and bool(self._momentum) != bool(state["velocity"]):
            raise PersistenceError(
                "the checkpoint has another spark.sparkdl.comm.compression.momentum. Do not change it"
            )
        self._parts.clear()
        for start, saved in state["left"].items():
            part = self._part(int(start), saved)
            part.residual.copy_(saved)
            part.is_clear = False
            if part.velocity is not None:
                part.velocity.copy_(state["velocity"][start])

    def _part(self, start: int, like: torch.Tensor) -> _Residual:
        if start not in self._parts:
            created = self._parts[start] = _Residual(torch.zeros_like(like), torch.zeros_like(like))
            if self._momentum:
                created.velocity, created.next_velocity = torch.zeros_like(like), torch.zeros_like(like)
        return self._parts[start]
