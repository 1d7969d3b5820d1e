"""What the parameter server costs however little travels: by iterations of a tiny model, here with a server that pretends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkdl_comm.autotune import timing
from sparkdl_comm.conf import CommConf
from sparkdl_comm.sim.server_run import Overhead
from tests.unit.gang_helpers import gang_of

#: Seconds of an iteration, by batching and rank.
SECONDS = {"whole": (0.006, 0.008), "layerwise": (0.022, 0.020)}


class Pretender:
    """Server of a rank whose iterations take the seconds that they are said to take, the first ones ten times as long."""

    def __init__(self, clock: dict[int, float], seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self.calls: list[str] = []

    def begin_step(self) -> None:
        self.calls.append("begin_step")

    def before_forward(self) -> None:
        self.calls.append("before_forward")

    def after_backward(self) -> None:
        self.calls.append("after_backward")

    def update(self) -> None:
        self.calls.append("update")
        compiling = len(self.calls) <= 4 * timing._COMPILING_ITERATIONS
        self._clock[threading.get_ident()] = self._clock.get(threading.get_ident(), 0.0) + self._seconds * (
            10 if compiling else 1
        )


class Pretenders:
    """In the place of strategies that follow each other."""

    def __init__(self, rank: int, clock: dict[int, float]) -> None:
        self._rank, self._clock = rank, clock
        self.servers: list[Pretender] = []
        self.settings: list[tuple[str, str, Any]] = []

    @contextlib.contextmanager
    def probe_strategy(self, conf: CommConf, model: Any, make_optimizer: Any) -> Iterator[Pretender]:
        assert (len(model.layers), model.count) == (timing._LAYERS, 2 * timing._LAYERS), (
            "each rank owns a stripe of each"
        )
        self.settings.append((conf.ps.batching, conf.ps.wire, conf.compression.method))
        self.servers.append(Pretender(self._clock, SECONDS[conf.ps.batching][self._rank]))
        yield self.servers[-1]


def test_overhead_is_measured_by_all_ranks_and_is_that_of_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: dict[int, float] = {}
    perf_counter = SimpleNamespace(perf_counter=lambda: clock.get(threading.get_ident(), 0.0))
    monkeypatch.setattr(timing, "time", perf_counter)
    conf = CommConf.from_mapping({}, strategy="ps", ps_wire="bf16", compression="exact:0.01", ps_batching="ibatch")
    found: dict[int, Overhead] = {}
    with gang_of(2) as gangs:
        every = [Pretenders(rank, clock) for rank in range(2)]

        def measure(rank: int) -> None:
            found[rank] = timing.measure_overhead(cast("Any", every[rank]), gangs[rank], conf)

        threads = [threading.Thread(target=measure, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found[0] == found[1]
    assert (found[0].startup, found[0].handling) == (pytest.approx(0.003), pytest.approx(0.002))
    for ranks in every:
        assert ranks.settings == [("whole", "fp32", None), ("layerwise", "fp32", None)]
        for server in ranks.servers:
            assert server.calls[:5] == ["begin_step", "before_forward", "after_backward", "update", "begin_step"]
