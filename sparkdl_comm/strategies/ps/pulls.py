"""Pulls of strategy ps: forward waits for each bucket of parameters just before it is used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sparkdl_comm.jvm.session import PsSession
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.layer_buckets import LayerBuckets
from sparkdl_comm.space.wait_on_use import WaitOnUse, can_wait_on_use
from sparkdl_comm.strategies.base import Stopwatch
from sparkdl_comm.strategies.ps.memory import ParameterMemory
from sparkdl_comm.strategies.ps.profiler import Profiler
from sparkdl_comm.strategies.trace import BatchTrace


class ParameterPulls:
    """Pulls of the current version's parameters on one rank.

    ``buckets``: buckets in which the next parameters arrive.
    """

    def __init__(
        self,
        session: PsSession,
        model: FlatModel,
        memory: ParameterMemory,
        buckets: LayerBuckets,
        *,
        on_gpu: bool,
        profiler: Profiler | None,
        watch: Stopwatch,
        trace: BatchTrace,
    ) -> None:
        self.buckets = buckets
        self._session, self._model, self._memory, self._on_gpu = session, model, memory, on_gpu
        self._profiler, self._watch, self._trace = profiler, watch, trace
        self._wait_on_use = (
            WaitOnUse(model, self._wait_for_layer, self._is_idle) if can_wait_on_use(model.module) else None
        )
        self._version, self._prefetched, self._pulled = 0, -1, 0
        self._can_prefetch_next = self._is_measuring = False
        self._used: set[int] = set()

    def begin_version(self, version: int, *, can_prefetch_next: bool, is_in_place: bool = False) -> None:
        """Wait for parameters of ``version`` from now on.

        :param can_prefetch_next: True: the next version may arrive as soon as all parameters of this one are here.
        :param is_in_place: True: the parameters of this version are in place and need no pull.
        """
        self._version, self._can_prefetch_next = version, can_prefetch_next
        self._pulled = len(self.buckets) if is_in_place else 0
        if is_in_place:
            self._prefetched = version

    def prefetch(self, version: int) -> None:
        """Ask the executor to fetch parameters of ``version`` once they are published. Repeated calls do nothing."""
        if self._prefetched < version:
            self._session.prefetch(version)
            self._prefetched = version

    def begin_step(self) -> None:
        """Wait until forward may begin: at once if hooks can see which parameters it uses, else with all parameters."""
        self._used = set()
        self._is_measuring = self._profiler is not None
        if self._wait_on_use is None or len(self.buckets) == 1:
            self.wait()

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Run a forward pass inside. Each parameter is here when it is used; at the end all are."""
        self._trace.begin(self.buckets)
        if self._wait_on_use is None or self._is_idle():
            yield
            self._trace.add_pass_span("forward batch", len(self.buckets))
            return
        if self._profiler is not None:
            self._profiler.forward.begin()
        with self._wait_on_use:
            yield
        if self._profiler is not None:
            self._profiler.forward.end()
            self._is_measuring = False  # later passes of the step do not wait for parameters
        self._trace.add_pass_span("forward batch", len(self.buckets))
        self.wait()

    def wait(self) -> None:
        """Wait until all parameters of this version are here."""
        if not self._is_complete():
            self._pull(len(self.buckets) - 1)

    def _is_complete(self) -> bool:
        return self._pulled == len(self.buckets)

    def _is_idle(self) -> bool:
        """Return True if all parameters are here and this step needs no more layer times: forward then runs without hooks."""
        return self._is_complete() and not self._is_measuring

    def _wait_for_layer(self, layer: int) -> None:
        """Wait for this layer's bucket. Called just before forward uses the layer."""
        if layer in self._used:
            return
        self._used.add(layer)
        if self._profiler is not None:
            self._profiler.forward.stop()
        if self.buckets.of[layer] >= self._pulled:
            self._pull(self.buckets.of[layer])
        if self._profiler is not None:
            self._profiler.forward.start_layer(layer)

    def _pull(self, bucket: int) -> None:
        """Wait for the parameters of all buckets up to this one."""
        self._trace.add_pass_span("forward batch", self._pulled)
        with self._watch.phase("pull"):
            answer = self._session.pull(self._version, bucket)
            if self._on_gpu:
                for layers in self.buckets.layers[self._pulled : bucket + 1]:
                    stretch = self._model.stretch(layers)
                    self._model.values[stretch].copy_(self._memory.values[stretch], non_blocking=True)
        self._trace.add_arrivals("pull batch", self.buckets, self._pulled, answer["batches"])
        self._trace.resume()
        self._pulled = bucket + 1
        self._watch.bytes["pull"] += answer["bytes"]
        if self._is_complete() and self._can_prefetch_next:
            self.prefetch(self._version + 1)
