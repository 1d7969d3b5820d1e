"""Sums of a shard's gradients over all ranks, made by the executor's JVM."""

from __future__ import annotations

from sparkdl_comm.jvm.session import PsSession
from sparkdl_comm.space.layer_buckets import LayerBuckets
from sparkdl_comm.strategies.base import Stopwatch
from sparkdl_comm.strategies.trace import BatchTrace


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
