"""What selection leaves out of a gradient is added to that of the next step: error feedback, and momentum correction.

Without momentum, for a part of the gradient g in each step::

    a = left + g;  the k largest of a travel;  left = a where they do not, else what rounding took of them

With momentum m (Deep Gradient Compression, Lin et al. 2018, sections 3.1 and 3.2) it is the velocity that is gathered, and
it is cleared where elements travel, so that an optimizer without momentum does what one with it does::

    u = m u + g;  a = left + u;  the k largest of a travel;  left as above, u = u where they do not, else u = 0

Parameters that this rank did not use in a step, whose gradient is -0.0, keep what was left and send -0.0.

A step that is skipped, because fp16 overflowed somewhere, leaves everything as it was before it. Gradients are multiples of a
scale that may change from step to step, such as the loss scale; what is left out is kept without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparkdl_comm.errors import PersistenceError


@dataclass
class _Part:
    """Two memories for what is left out of one part, which take turns: what a step changes, a skipped one leaves."""

    left: torch.Tensor
    next_left: torch.Tensor
    velocity: torch.Tensor | None = None
    next_velocity: torch.Tensor | None = None
    #: Nothing is left out, and there is no velocity.
    is_clear: bool = True
    #: Between :meth:`Feedback.add` and :meth:`Feedback.settle`: what it will be then.
    will_be_clear: bool = False
    is_changed: bool = False
    #: Between :meth:`Feedback.empty` and :meth:`Feedback.summed`: what this rank had no gradient of.
    unused: Sequence[slice] = ()


class Feedback:
    """Of one rank. A part of its gradient is known by where it begins in the flat vector.

    The order of the calls, for each part and step: :meth:`add`, perhaps :meth:`take` or :meth:`carry`; or :meth:`empty` and,
    after the sum, :meth:`summed`. Then :meth:`settle` once.

    :param momentum: of momentum correction; 0: none.
    :param keeps: False: what is left out is lost.
    """

    def __init__(self, momentum: float = 0.0, keeps: bool = True) -> None:
        self._momentum, self._keeps = momentum, keeps
        self._parts: dict[int, _Part] = {}

    def add(self, start: int, gradient: torch.Tensor, scale: float, unused: Sequence[slice] = ()) -> torch.Tensor:
        """What selection chooses from: the gradient with what was left out, without the scale.

        It is this object's memory, float32 ``[n]``: valid until :meth:`settle`, not to be changed.

        :param gradient: float32 ``[n]``, with the scale; is only read.
        :param unused: parts of it that belong to parameters without a gradient on this rank. They are -0.0 in the result.
        """
        part = self._part(start, gradient)
        part.is_changed, part.will_be_clear = True, False
        if part.velocity is None:
            torch.add(part.left, gradient, alpha=1 / scale, out=part.next_left)
        else:
            assert part.next_velocity is not None
            torch.mul(part.velocity, self._momentum, out=part.next_velocity)
            part.next_velocity.add_(gradient, alpha=1 / scale)
            torch.add(part.left, part.next_velocity, out=part.next_left)
        for stretch in unused:
            part.next_left[stretch] = -0.0
        return part.next_left

    def take(
        self, start: int, indices: torch.Tensor, sent: torch.Tensor, scale: float, unused: Sequence[slice] = ()
    ) -> None:
        """These elements travel; ``unused`` as :meth:`add` had it.

        :param indices: int64 ``[k]``, different ones of the part.
        :param sent: float32 ``[k]``, as they arrive elsewhere, with the scale.
        """
        part = self._parts[start]
        if self._keeps:
            part.next_left[indices] -= sent / scale
        else:
            part.next_left.zero_()
        if part.next_velocity is not None:
            part.next_velocity[indices] = 0.0
        for stretch in unused:
            part.next_left[stretch] = part.left[stretch]
            if part.velocity is not None and part.next_velocity is not None:
                part.next_velocity[stretch] = part.velocity[stretch]

    def carry(self, start: int, carried: torch.Tensor, unused: Sequence[slice] = ()) -> None:
        """Of what :meth:`add` returned this travels, without momentum; ``unused`` as there.

        :param carried: float32 ``[n]``, without the scale.
        """
        part = self._parts[start]
        part.next_left -= carried
        for stretch in unused:
            part.next_left[stretch] = part.left[stretch]

    def is_clear(self, start: int) -> bool:
        """Whether nothing of this part is kept, so that :meth:`empty` has nothing to do. It would read and write the gradient
        several times, in each step of a run whose steps are dense."""
        return not self._momentum and (start not in self._parts or self._parts[start].is_clear)

    def empty(self, start: int, gradient: torch.Tensor, scale: float, unused: Sequence[slice] = ()) -> None:
        """Adds what was left out to the gradient, in place, and keeps nothing: all elements travel. With momentum the
        velocity travels, and :meth:`summed` is to follow."""
        if self.is_clear(start):
            return
        part = self._part(start, gradient)
        part.is_changed, part.unused = True, unused
        part.will_be_clear = part.velocity is None and not any(part.left[stretch].any() for stretch in unused)
        part.next_left.zero_()
        if part.velocity is not None:
            gradient.add_(part.velocity, alpha=scale * self._momentum)
        gradient.add_(part.left, alpha=scale)
        for stretch in unused:
            gradient[stretch] = -0.0
            part.next_left[stretch] = part.left[stretch]

    def summed(
        self, start: int, total: torch.Tensor, scale: float, contributors: int, unused: Sequence[slice] = ()
    ) -> None:
        """What a part that all elements of travelled is in all ranks together: each of those that have a velocity of it keeps
        the same share, so that velocities are the optimizer's momentum in sum.

        :param total: float32 ``[n]``, with the scale; is only read.
        :param contributors: ranks that have this part.
        :param unused: parts of it that belong to parameters without a gradient on any rank.
        """
        part = self._parts.get(start)
        if part is None or part.velocity is None or part.next_velocity is None:
            return
        torch.mul(total, 1 / (scale * contributors), out=part.next_velocity)
        part.next_velocity -= part.left  # travelled too, but is no velocity: only their sums are known
        for stretch in part.unused:  # nothing of this rank's travelled
            part.next_velocity[stretch] += part.left[stretch] + part.velocity[stretch]
        for stretch in unused:
            part.next_velocity[stretch] = part.velocity[stretch]

    def forget(self, start: int, stop: int) -> None:
        """Loses what was left out of the parts that begin in this range."""
        for place in [place for place in self._parts if start <= place < stop]:
            del self._parts[place]

    def settle(self, applied: bool) -> None:
        """The step that all parts were added for is over; it was skipped if not ``applied``."""
        for part in self._parts.values():
            if part.is_changed and applied:
                part.left, part.next_left = part.next_left, part.left
                part.velocity, part.next_velocity = part.next_velocity, part.velocity
                part.is_clear = part.will_be_clear
            part.is_changed = False

    def state(self) -> dict[str, Any]:
        """For checkpoints; tensors are not copied."""
        return {
            "left": {str(start): part.left for start, part in self._parts.items()},
            "velocity": {str(s): part.velocity for s, part in self._parts.items() if part.velocity is not None},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """What :meth:`state` returned.

        :raises PersistenceError: with momentum where this has none, or the other way round.
        """
        if state["left"] and bool(self._momentum) != bool(state["velocity"]):
            raise PersistenceError("the checkpoint is of another spark.sparkdl.comm.compression.momentum: keep it")
        self._parts.clear()
        for start, left in state["left"].items():
            part = self._part(int(start), left)
            part.left.copy_(left)
            part.is_clear = False
            if part.velocity is not None:
                part.velocity.copy_(state["velocity"][start])

    def _part(self, start: int, like: torch.Tensor) -> _Part:
        if start not in self._parts:
            made = self._parts[start] = _Part(torch.zeros_like(like), torch.zeros_like(like))
            if self._momentum:
                made.velocity, made.next_velocity = torch.zeros_like(like), torch.zeros_like(like)
        return self._parts[start]
