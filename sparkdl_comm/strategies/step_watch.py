"""What the steps of one rank take, and what of it is computing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from statistics import fmean

import torch
from torch.utils.hooks import RemovableHandle

from sparkdl_comm.space.flat import FlatModel, on_accumulated
from sparkdl_comm.strategies.candidates import Computing


class StepWatch:
    """Of the steps since the last :meth:`restart`. The order of the calls: :meth:`begin`, :meth:`backward` around the step's
    last backward pass if there is one, :meth:`update` around the update, :meth:`end`."""

    def __init__(
        self,
        model: FlatModel,
        clock: Callable[[], float] = time.perf_counter,
        waited: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``waited``: seconds that the rank has waited for parameters so far, which is no computing."""
        self._clock, self._waited = clock, waited
        self._arrivals = [0.0] * len(model.parameters)
        self._backward_at = 0.0
        self._hooks: list[RemovableHandle] = []
        for number, parameter in enumerate(model.parameters):
            self._hooks.append(on_accumulated(parameter, self._arrival(number)))
        self.restart(0)

    def restart(self, skipped: int) -> None:
        """Forgets all steps; the next ``skipped`` ones are not measured."""
        self._skipped = skipped
        self.seconds: list[float] = []
        self._computed: list[Computing] = []

    def begin(self) -> None:
        self._begun, self._waiting = self._clock(), self._waited()
        self._forward = self._backward = self._updating = 0.0
        self._arrivals = [0.0] * len(self._arrivals)

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        self._backward_at = self._clock()
        self._forward = self._backward_at - self._begun - (self._waited() - self._waiting)
        yield
        self._backward = self._clock() - self._backward_at

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        begun = self._clock()
        yield
        self._updating = self._clock() - begun

    def end(self) -> None:
        if self._skipped:
            self._skipped -= 1
            return
        self.seconds.append(self._clock() - self._begun)
        self._computed.append(Computing(self._forward, self._backward, self._updating, tuple(self._arrivals)))

    def computing(self) -> Computing:
        """The mean of the measured steps; parameters whose gradients were not seen count as there from the beginning."""
        forward, backward, update = (
            fmean(getattr(each, name) for each in self._computed) for name in ("forward", "backward", "update")
        )
        arrivals = zip(*(each.arrivals for each in self._computed), strict=True)
        return Computing(forward, backward, update, tuple(map(fmean, arrivals)))

    def close(self) -> None:
        """Sees no more gradients."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _arrival(self, number: int) -> Callable[[torch.nn.Parameter], None]:
        def arrived(parameter: torch.nn.Parameter) -> None:
            self._arrivals[number] = self._clock() - self._backward_at

        return arrived
