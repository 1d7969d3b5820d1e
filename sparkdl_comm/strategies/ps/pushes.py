"""Pushes of gradients: whole, or only the largest elements of each layer in the steps that the schedule selects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from sparkdl_comm.conf import PREFIX
from sparkdl_comm.conf.groups import CompressionConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.jvm.session import PsSession
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.layer_buckets import LayerBuckets
from sparkdl_comm.strategies.base import StepInfo, Stopwatch
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
