"""Pulls of parameters and pushes of gradients of one rank of strategy ps, bucket by bucket, and their spans in the trace.

Forward waits for each bucket of parameters just before it is used. Gradients are pushed whole, or only the largest elements of
each layer in the steps that the schedule selects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from sparkdl_comm.conf import PREFIX
from sparkdl_comm.conf.groups import CompressionConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.jvm.session import PsSession
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.parameter_space import LayerBuckets
from sparkdl_comm.space.wait_on_use import WaitOnUse, can_wait_on_use
from sparkdl_comm.strategies.base import StepInfo, Stopwatch
from sparkdl_comm.strategies.ps.adaptive_buckets import Profiler
from sparkdl_comm.strategies.ps.memory import ParameterMemory

if TYPE_CHECKING:
    from sparkdl_comm.strategies.trace import Trace


class BatchTrace:
    """Spans of a parameter-server rank, one per batch (bucket of layers). Does nothing without a trace."""

    def __init__(self, trace: Trace | None) -> None:
        self._trace = trace
        #: True between two iterations: parameters that arrive now belong to the next one.
        self.is_between_iterations = False
        self._span_begin = 0.0
        self._next_batch = 0
        self._buckets: LayerBuckets | None = None

    def begin(self, buckets: LayerBuckets) -> None:
        """Begin a pass through the layers of all batches."""
        self._buckets, self._next_batch = buckets, 0
        self.resume()

    def resume(self) -> None:
        """Start the next span of the pass now, so that a wait before it is not counted."""
        if self._trace is not None:
            self._span_begin = self._trace.clock()

    def add_pass_span(self, name: str, batch: int) -> None:
        """Add a span up to now for the batches before number ``batch``. The pass ends with the last batch."""
        if self._trace is None or self._buckets is None or batch <= self._next_batch:
            return
        now = self._trace.clock()
        pairs = self._buckets.pairs[self._next_batch : batch]
        layers = [min(first for first, _ in pairs), max(last for _, last in pairs)]
        self._trace.add(name, self._span_begin, now, batch=batch - 1, layers=layers)
        self._span_begin, self._next_batch = now, batch
        if batch == len(self._buckets):
            self._buckets = None

    @contextlib.contextmanager
    def span(self, name: str, buckets: LayerBuckets, batch: int) -> Iterator[None]:
        """Record the time of the ``with`` block as a span of one batch of layers, even if the block raises.

        The span does not change the pass that :meth:`begin` has started.
        """
        begin = 0.0 if self._trace is None else self._trace.clock()
        try:
            yield
        finally:
            if self._trace is not None:
                self._trace.add(name, begin, self._trace.clock(), batch=batch, layers=buckets.pairs[batch])

    def add_arrivals(
        self, name: str, buckets: LayerBuckets, first: int, batches: Sequence[Sequence[Sequence[float]]]
    ) -> None:
        """Add spans for received batches from number ``first`` on. ``batches``: the executor's report of their blocks."""
        if self._trace is None:
            return
        for batch, blocks in enumerate(batches, first):
            if blocks:
                senders, request_times, begin_times, end_times, sizes = zip(*blocks, strict=True)
                about = {"layers": buckets.pairs[batch], "bytes": sum(sizes), "from": senders}
                about |= {
                    "startup": min(begin_times) - min(request_times),
                    "iteration": self._trace.current + self.is_between_iterations,
                }
                self._trace.add(name, min(begin_times), max(end_times), batch=batch, **about)

    def add_sums(self, buckets: LayerBuckets, batch: int, answer: Mapping[str, Any]) -> None:
        """Add spans for a batch whose gradients the executor has summed. ``answer``: its answer to ``collect``."""
        if self._trace is not None:
            self.add_arrivals("push batch", buckets, batch, answer["batches"])
            begin, end = answer["sum"]
            self._trace.add("aggregate batch", begin, end, batch=batch, layers=buckets.pairs[batch])


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
        watch: Stopwatch,
        trace: BatchTrace,
    ) -> None:
        self.buckets = buckets
        self._session, self._model, self._memory, self._on_gpu = session, model, memory, on_gpu
        self._watch, self._trace = watch, trace
        self._profiler: Profiler | None = None
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

    def begin_step(self, profiler: Profiler | None) -> None:
        """Wait until forward may begin: at once if hooks can see which parameters it uses, else with all parameters.

        ``profiler``: measures the layers' times in this step; None: nothing does.
        """
        self._used = set()
        self._profiler, self._is_measuring = profiler, profiler is not None
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


class ShardSums:
    """Gradient sums of one server. Call :meth:`begin_step`, then :meth:`collect` once for each bucket, in bucket order.

    ``collected``: number of buckets whose sums are in the shard's memory.
    """

    def __init__(self, jvm: PsSession, watch: Stopwatch, trace: BatchTrace) -> None:
        self._jvm, self._watch, self._trace = jvm, watch, trace
        self.collected = 0

    def begin_step(self, version: int, buckets: LayerBuckets) -> None:
        self._version, self._buckets = version, buckets
        self.collected = 0

    @property
    def is_complete(self) -> bool:
        return self.collected == len(self._buckets)

    def collect(self) -> None:
        """Wait for the sum of the next bucket's gradients."""
        with self._watch.phase("push"):
            answer = self._jvm.collect(self._version, self.collected)
        self._trace.add_sums(self._buckets, self.collected, answer)
        self.collected += 1
        self._watch.seconds["push"] -= answer["aggregate_seconds"]
        self._watch.seconds["aggregate"] += answer["aggregate_seconds"]
        self._watch.bytes["push"] += answer["bytes"]

    def collect_all(self) -> None:
        while not self.is_complete:
            self.collect()


class WholePushes:
    """Pushes of whole gradients."""

    def begin_step(self, info: StepInfo) -> None:
        """Begin the step that ``info`` describes."""

    def compress(self, layers: Iterable[int]) -> bool:
        """Compress the complete gradients of these layers in place. Return True if that took time."""
        return False

    def end_step(self, applied: bool) -> None:
        """End the step. This method, :meth:`state` and :meth:`load_state` work as those of :class:`BucketExchange`."""

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


class SparsePushes(WholePushes):
    """Pushes of the largest elements of each layer, on one rank.

    Steps: as in a push of whole gradients.
    Bytes on the wire: 6 for each nonzero element; in dense steps 4 for each element.

    :param conf: settings with a method.
    :param gradients: flat float32 gradients of the whole model, which are pushed.
    """

    def __init__(self, conf: CompressionConf, rank: int, model: FlatModel, gradients: torch.Tensor) -> None:
        from sparkdl_comm.compress.feedback import FlatRange
        from sparkdl_comm.compress.sums import Sparsifier

        assert conf.method is not None
        self._compression, self._schedule, self._gradients = conf.method, conf.schedule, gradients
        self._sparsifier = Sparsifier.of(conf.method, conf, rank)
        bounds = [entry.start for entry in model.entries]
        self._layer_ranges = [FlatRange.of(layer.start, layer.start + layer.count, bounds) for layer in model.layers]
        self._density: float | None = None
        self._scale = 1.0

    @staticmethod
    def check(conf: CompressionConf) -> None:
        """Raise ConfError if the parameter server does not support the settings of compression."""
        if conf.method is None:
            return
        unsupported = {
            "": conf.method if conf.method.rank else None,
            ".schedule": conf.schedule if conf.schedule.auto else None,
            ".values": conf.values if conf.values != "fp32" else None,
            ".momentum": conf.momentum or None,
        }
        for name, value in unsupported.items():
            if value is not None:
                raise ConfError(
                    f"{PREFIX}compression{name}={value}: strategy ps pushes the largest elements as fp32, without momentum"
                    " correction and without trials. Remove this setting, or use strategy auto."
                )

    def begin_step(self, info: StepInfo) -> None:
        from sparkdl_comm.compress.sums import density_at

        density = density_at(self._schedule, self._compression.density, info.step, info.epoch)
        self._density = None if info.dense else density
        self._scale = info.loss_scale

    def compress(self, layers: Iterable[int]) -> bool:
        for part in map(self._layer_ranges.__getitem__, layers):
            gradient = self._gradients[part.start : part.stop]
            if self._density is None:
                self._sparsifier.flush_into(part.start, gradient, self._scale, part.find_unused(gradient))
            else:
                self._sparsifier.sparsify(part, gradient, self._density, self._scale)
        return True

    def end_step(self, applied: bool) -> None:
        self._sparsifier.settle(applied)

    def state(self) -> dict[str, Any]:
        return self._sparsifier.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self._sparsifier.load_state(state)
