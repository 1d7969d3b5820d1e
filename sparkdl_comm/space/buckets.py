"""The flat gradient in parts that travel while backward is still computing the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn

from sparkdl_comm.errors import ModelError
from sparkdl_comm.space.flat import FlatModel, on_accumulated


@dataclass(eq=False)
class _Bucket:
    """Elements ``start`` to ``stop`` of the flat vector. ``missing``: parameters in it whose gradients are not there yet.
    ``repeats``: backward makes one of them several times, so they are complete at its end only."""

    start: int
    stop: int
    owners: list[nn.Parameter]
    missing: set[nn.Parameter] = field(default_factory=set)
    repeats: bool = False


class Buckets:
    """Calls ``send(start, stop)`` for each part of the gradient as soon as backward has completed it.

    They are sent in the order in which they are given, on all ranks, whatever gradients are missing on some. So they should be
    given from the end of the vector to its beginning, which is about how backward goes.

    Re-entrant checkpointing of a layer that is used twice makes its gradients in several rounds of one backward pass. Nothing
    tells so beforehand, so nothing is sent in the first backward pass, which shows for what parameters that is.
    """

    def __init__(self, model: FlatModel, parts: Sequence[tuple[int, int]], send: Callable[[int, int], None]) -> None:
        """``model`` is bound. ``parts``: first element and end of each, which end where parameters do; all of the vector."""
        self._send = send
        self._buckets: list[_Bucket] = []
        self._sent = 0
        self._last_backward = self._seen_backward = False
        of: dict[nn.Parameter, _Bucket] = {}
        for start, stop in parts:
            owners = [model.parameters[piece.number] for piece in model.cut(start, stop - start)]
            self._buckets.append(_Bucket(start, stop, owners))
            of |= dict.fromkeys(owners, self._buckets[-1])
        self._collectors = [on_accumulated(owner, self._collector(bucket)) for owner, bucket in of.items()]
        self._begin()

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """(start, stop) of the parts, in the order in which they are sent."""
        return [(bucket.start, bucket.stop) for bucket in self._buckets]

    @contextlib.contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        """Around a backward pass. Only in the step's ``last`` one are gradients complete when they come."""
        self._last_backward = last
        try:
            yield
        finally:
            self._last_backward = False
        self._seen_backward |= last

    def close(self) -> None:
        """Sees no more gradients."""
        # Python does not find the circle of parameter, collector and whatever `send` refers to: it goes through torch's code.
        for collector in self._collectors:
            collector.remove()

    def flush(self) -> None:
        """Sends what was not sent: the gradients are complete, be they zero. The next backward belongs to another step."""
        for bucket in self._buckets[self._sent :]:
            self._send(bucket.start, bucket.stop)
        self._begin()

    def _begin(self) -> None:
        self._sent = 0
        for bucket in self._buckets:
            bucket.missing = set(bucket.owners)

    def _collector(self, bucket: _Bucket) -> Callable[[nn.Parameter], None]:
        def collect(parameter: nn.Parameter) -> None:
            if not self._last_backward:
                return
            if parameter not in bucket.missing:
                self._came_again(bucket)
            bucket.missing.discard(parameter)
            while self._seen_backward and self._sent < len(self._buckets):
                first = self._buckets[self._sent]
                if first.missing or first.repeats:
                    break
                self._sent += 1
                self._send(first.start, first.stop)

        return collect

    def _came_again(self, bucket: _Bucket) -> None:
        bucket.repeats = True
        if bucket in self._buckets[: self._sent]:
            raise ModelError(
                "backward made a gradient twice, the second time after it was sent, which it did not do in the first step"
                " (re-entrant checkpointing of a layer that is used several times in some steps only?): pass"
                " use_reentrant=False to torch.utils.checkpoint"
            )
