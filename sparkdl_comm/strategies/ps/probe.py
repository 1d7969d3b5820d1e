"""Measured overhead of a parameter-server iteration: the cost that does not depend on the bytes sent.

The bridge to the JVM, notices to other executors, publishing and thread wake-ups take time for each batch. On small models
that is more than everything else. Before training, all ranks run some iterations of a tiny model without any computation: once
with a single batch, once with one batch per layer.

The result ranks strategies. It is too low for the step time of a small fit (``python/benchmarks/scale/appendix.md``).
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

import torch
from torch import nn

from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimization import Optimization
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.sim.server_run import Overhead
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.strategy_switcher import StrategySwitcher

#: Number of layers of the tiny model.
_LAYERS = 8
#: Unmeasured iterations, while the JVMs compile, and measured ones.
_COMPILING_ITERATIONS, _MEASURED_ITERATIONS = 5, 10


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
