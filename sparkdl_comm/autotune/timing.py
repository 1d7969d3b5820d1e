"""Measurements of a rank: its step times with the compute time in them, and the overhead of the parameter server.

The overhead is the cost of an iteration that does not depend on the bytes sent. The bridge to the JVM, notices to other
executors, publishing and thread wake-ups take time for each batch. On small models that is more than everything else. Before
training, all ranks run some iterations of a tiny model without any computation: once with a single batch, once with one batch
per layer. The result ranks strategies. It is too low for the step time of a small fit
(``python/benchmarks/scale/appendix.md``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import fmean, median

import torch
from torch import nn

from sparkdl_comm.autotune.prediction import StepTimings
from sparkdl_comm.autotune.strategy_switcher import StrategySwitcher
from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import Optimization, OptimizerMaker
from sparkdl_comm.sim.server_run import Overhead
from sparkdl_comm.space.flat import FlatModel

#: Number of layers of the tiny model.
_LAYERS = 8
#: Unmeasured iterations, while the JVMs compile, and measured ones.
_COMPILING_ITERATIONS, _MEASURED_ITERATIONS = 5, 10


class StepTimer:
    """Step times of one rank since the last :meth:`restart`.

    Order of the calls in a step: :meth:`begin`; :meth:`backward` around the step's last backward pass, if there is one;
    :meth:`update` around the update; :meth:`end`.
    """

    def __init__(
        self,
        model: FlatModel,
        clock: Callable[[], float] = time.perf_counter,
        wait_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``wait_seconds``: returns the seconds that the rank has waited for parameters so far; they are not compute time."""
        self._model, self._clock, self._wait_seconds = model, clock, wait_seconds
        self.restart(0)

    def restart(self, skipped_steps: int) -> None:
        """Forget all steps. The next ``skipped_steps`` steps are not measured."""
        self._skipped_steps = skipped_steps
        self.seconds: list[float] = []
        self._timings: list[StepTimings] = []

    def begin(self) -> None:
        self._begin_at, self._waited_before = self._clock(), self._wait_seconds()
        self._forward = self._backward = self._updating = 0.0
        self._arrivals = [0.0] * len(self._model.parameters)

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        self._backward_at = self._clock()
        self._forward = self._backward_at - self._begin_at - (self._wait_seconds() - self._waited_before)
        try:
            with self._model.listen(self._on_gradient):
                yield
        finally:
            self._backward = self._clock() - self._backward_at

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        begin_at = self._clock()
        try:
            yield
        finally:
            self._updating = self._clock() - begin_at

    def end(self) -> None:
        if self._skipped_steps:
            self._skipped_steps -= 1
            return
        self.seconds.append(self._clock() - self._begin_at)
        self._timings.append(StepTimings(self._forward, self._backward, self._updating, tuple(self._arrivals)))

    def average_timings(self) -> StepTimings:
        """Return the mean over the measured steps. A gradient that never arrived counts as ready at the start of backward."""
        forward, backward, update = (
            fmean(getattr(each, name) for each in self._timings) for name in ("forward", "backward", "update")
        )
        arrivals = zip(*(each.arrivals for each in self._timings), strict=True)
        return StepTimings(forward, backward, update, tuple(map(fmean, arrivals)))

    def _on_gradient(self, number: int) -> None:
        self._arrivals[number] = self._clock() - self._backward_at


def measure_overhead(strategies: StrategySwitcher, gang: Gang, conf: CommConf) -> Overhead:
    """Measure and return the overhead of the slowest rank, the same on all ranks. Takes a fraction of a second.

    :param strategies: a switcher in which no strategy has joined yet.
    :param conf: settings with strategy ps; batching, wire format and compression are replaced.
    """
    compression, ps = replace(conf.compression, method=None), replace(conf.ps, wire="fp32", push_batching="")
    whole, layerwise = (
        _measure_seconds(strategies, gang, replace(conf, compression=compression, ps=replace(ps, batching=cut)))
        for cut in ("whole", "layerwise")
    )
    return Overhead.of_iterations(whole, layerwise, _LAYERS)


def _measure_seconds(strategies: StrategySwitcher, gang: Gang, conf: CommConf) -> float:
    """Return the median seconds of an iteration on the slowest rank."""
    model = FlatModel(nn.Sequential(*(nn.Linear(gang.world, 1, bias=False) for _ in range(_LAYERS))))
    optimizer = OptimizerMaker(model, Optimization(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0)))
    seconds = []
    with strategies.probe_strategy(conf, model, optimizer) as server:
        for _ in range(_COMPILING_ITERATIONS + _MEASURED_ITERATIONS):
            begin = time.perf_counter()
            server.begin_step()
            server.before_forward()
            server.after_backward()
            server.update()
            seconds.append(time.perf_counter() - begin)
    medians: list[float] = gather_json(gang, median(seconds[_COMPILING_ITERATIONS:]), conf.timeout)
    return max(medians)
