"""Buckets of the flat gradient, sent while backward is still computing other buckets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sparkdl_comm.errors import ModelError
from sparkdl_comm.space.flat import FlatModel


@dataclass(eq=False)
class _Bucket:
    """Elements ``start`` to ``stop`` of the flat vector.

    :param owners: numbers of the parameters in the bucket.
    :param missing: those whose gradients backward has not made yet.
    :param has_repeats: backward makes the gradient of an owner several times, so the bucket is complete only at its end.
    """

    start: int
    stop: int
    owners: list[int]
    missing: set[int] = field(default_factory=set)
    has_repeats: bool = False


class GradientBuckets:
    """Sender of the gradient's buckets: it calls ``send(start, stop)`` as soon as backward has completed a bucket.

    Buckets are sent in the given order on all ranks, even if gradients are missing on some. So give them from the end
    of the vector to its beginning, about the order of backward.

    Re-entrant checkpointing of a layer that is used twice makes its gradients in several rounds of one backward pass.
    This cannot be known in advance. So the first backward pass sends nothing, and records for which parameters it
    happens.
    """

    def __init__(self, model: FlatModel, parts: Sequence[tuple[int, int]], send: Callable[[int, int], None]) -> None:
        """Create the buckets. ``model`` is bound.

        :param parts: (first element, end) of each bucket. They end where parameters end, and cover the whole vector.
        """
        self._model, self._send = model, send
        self._buckets: list[_Bucket] = []
        self._sent = 0
        self._seen_backward = False
        self._bucket_of: dict[int, _Bucket] = {}
        for start, stop in parts:
            owners = [piece.number for piece in model.cut(start, stop - start)]
            self._buckets.append(_Bucket(start, stop, owners))
            self._bucket_of |= dict.fromkeys(owners, self._buckets[-1])
        self._begin()

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """(start, stop) of the buckets, in the order in which they are sent."""
        return [(bucket.start, bucket.stop) for bucket in self._buckets]

    @contextlib.contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        """Observe a backward pass, as a context. Only in the ``last`` pass of a step is a gradient complete when it is
        made.
        """
        if not last:
            yield
            return
        with self._model.listen(self._on_gradient):
            yield
        self._seen_backward = True

    def flush(self) -> None:
        """Send the remaining buckets: all gradients are complete, perhaps zero. The next backward pass belongs to
        another step.
        """
        for bucket in self._buckets[self._sent :]:
            self._send(bucket.start, bucket.stop)
        self._begin()

    def _begin(self) -> None:
        self._sent = 0
        for bucket in self._buckets:
            bucket.missing = set(bucket.owners)

    def _on_gradient(self, number: int) -> None:
        bucket = self._bucket_of[number]
        if number not in bucket.missing:
            self._on_repeated_gradient(bucket)
        bucket.missing.discard(number)
        while self._seen_backward and self._sent < len(self._buckets):
            first = self._buckets[self._sent]
            if first.missing or first.has_repeats:
                break
            self._sent += 1
            self._send(first.start, first.stop)

    def _on_repeated_gradient(self, bucket: _Bucket) -> None:
        bucket.has_repeats = True
        if bucket in self._buckets[: self._sent]:
            raise ModelError(
                "backward made a gradient a second time after it was sent. It did not do so in the first step (re-entrant"
                " checkpointing of a layer that is used several times in some steps only?). Pass use_reentrant=False to"
                " torch.utils.checkpoint."
            )
