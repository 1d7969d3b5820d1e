"""Measurement of a rank's step times, and of the compute time in them."""

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
    """Step times of one rank since the last :meth:`restart`.

    Order of the calls in a step: :meth:`begin`; :meth:`backward` around the step's last backward pass, if there is one;
    :meth:`update` around the update; :meth:`end`.
    """

    def __init__(
        self,
        model: FlatModel,
        clock: Callable[[], float] = time.perf_counter,
        waited: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``waited``: returns the seconds that the rank has waited for parameters so far; they are not compute time."""
        self._clock, self._waited = clock, waited
        self._arrivals = [0.0] * len(model.parameters)
        self._backward_at = 0.0
        self._hooks: list[RemovableHandle] = []
        for number, parameter in enumerate(model.parameters):
            self._hooks.append(on_accumulated(parameter, self._arrival(number)))
        self.restart(0)

    def restart(self, skipped: int) -> None:
        """Forget all steps. The next ``skipped`` steps are not measured."""
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
        """Return the mean over the measured steps. A gradient that never arrived counts as ready at the start of backward."""
        forward, backward, update = (
            fmean(getattr(each, name) for each in self._computed) for name in ("forward", "backward", "update")
        )
        arrivals = zip(*(each.arrivals for each in self._computed), strict=True)
        return Computing(forward, backward, update, tuple(map(fmean, arrivals)))

    def close(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _arrival(self, number: int) -> Callable[[torch.nn.Parameter], None]:
        def arrived(parameter: torch.nn.Parameter) -> None:
            self._arrivals[number] = self._clock() - self._backward_at

        return arrived
