"""The flat gradient in parts that travel while backward is still computing the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import nn

from sparkdl_comm.train.flat import FlatModel


@dataclass
class _Bucket:
    """Elements ``start`` to ``stop`` of the flat vector. ``missing``: parameters in it whose gradients are not there yet."""

    start: int
    stop: int
    owners: list[nn.Parameter] = field(default_factory=list)
    missing: int = 0


class Buckets:
    """Calls ``send(start, stop)`` for each part of the gradient as soon as backward has completed it.

    Parts end where parameters do, and have ``nbytes`` at least, but the last one. They are sent from the end of the vector to
    its beginning, which is about how backward goes, and in this order on all ranks, whatever gradients are missing on some.
    """

    def __init__(self, model: FlatModel, nbytes: int, send: Callable[[int, int], None]) -> None:
        """``model`` is bound."""
        self._send = send
        self._buckets: list[_Bucket] = []
        self._sent = 0
        self._last_backward = False
        of = {}
        itemsize = model.gradients.element_size()
        for piece in reversed(model.cut(0, model.count)):
            if not self._buckets or (self._buckets[-1].stop - self._buckets[-1].start) * itemsize >= nbytes:
                self._buckets.append(_Bucket(piece.start, piece.start + piece.count))
            bucket = self._buckets[-1]
            bucket.start = piece.start
            bucket.owners.append(piece.owner)
            of[piece.owner] = bucket
        for owner, bucket in of.items():
            owner.register_post_accumulate_grad_hook(self._collector(bucket))
        self._begin()

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """(start, stop) of the parts, in the order in which they are sent."""
        return [(bucket.start, bucket.stop) for bucket in self._buckets]

    @contextlib.contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        """Around a backward pass. Only in the step's ``last`` one are gradients complete when they come."""
        self._last_backward = last
        yield
        self._last_backward = False

    def flush(self) -> None:
        """Sends what was not sent: the gradients are complete, be they zero. The next backward belongs to another step."""
        for bucket in self._buckets[self._sent :]:
            self._send(bucket.start, bucket.stop)
        self._begin()

    def _begin(self) -> None:
        self._sent = 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.owners)

    def _collector(self, bucket: _Bucket) -> Callable[[nn.Parameter], None]:
        def collect(parameter: nn.Parameter) -> None:
            if self._last_backward:
                bucket.missing -= 1
                while self._sent < len(self._buckets) and not self._buckets[self._sent].missing:
                    sent = self._buckets[self._sent]
                    self._sent += 1
                    self._send(sent.start, sent.stop)

        return collect
