"""Parameters that are on their way to a rank, bucket by bucket, while its next forward pass begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.wait_on_use import WaitOnUse, can_wait_on_use
from sparkdl_comm.strategies.base import Stopwatch
from sparkdl_comm.strategies.collective import CollectiveStrategy
from sparkdl_comm.strategies.exchange import Pending


class Arrivals:
    """Of one rank. :meth:`begin_step`, :meth:`forward` and :meth:`wait` are what a strategy's calls of these names, and its
    ``before_forward``, have to do.

    :param overlap: forward begins at once, and waits for each layer when it comes to it, if the module's use of its
        parameters can be noticed. Else it begins when all are here.
    """

    def __init__(self, model: FlatModel, watch: Stopwatch, *, overlap: bool) -> None:
        self._model, self._watch = model, watch
        waits = overlap and can_wait_on_use(model.module)
        self._gate = WaitOnUse(model, self._need, self._all_here) if waits else None
        self._coming: list[Pending] = []

    def add(self, bucket: Pending) -> None:
        """These elements are on their way."""
        self._coming.append(bucket)

    def begin_step(self) -> None:
        """Returns when forward may begin."""
        if self._gate is None:
            self.wait()

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Around a forward pass: each parameter is here when it is used, and all at the end."""
        if self._gate is not None and not self._all_here():
            with self._gate:
                yield
        else:
            yield
        self.wait()

    def wait(self) -> None:
        """Returns when all parameters are here."""
        self._await(self._model.count)

    def _all_here(self) -> bool:
        return not self._coming

    def _need(self, number: int) -> None:
        """Forward is about to use this layer, and perhaps those before it."""
        layer = self._model.layers[number]
        self._await(layer.start + layer.count)

    def _await(self, stop: int) -> None:
        """Returns when the parameters up to element ``stop`` are here."""
        for bucket in [bucket for bucket in self._coming if bucket.start < stop]:
            with self._watch.phase("pull"):
                bucket.wait()
            self._coming.remove(bucket)


class ArrivingParameters(CollectiveStrategy):
    """Strategies whose parameters are on their way when a step begins. ``join`` makes ``_arrivals``."""

    _arrivals: Arrivals

    def before_forward(self) -> None:
        self._arrivals.wait()

    def begin_step(self) -> None:
        self._arrivals.begin_step()

    def forward(self) -> contextlib.AbstractContextManager[None]:
        return self._arrivals.forward()

    def finish(self) -> None:
        self.before_forward()
        self._gang.all_gather(b"", self.conf.timeout)  # nobody leaves before all have the parameters
