"""Gradients of which only the largest elements of each layer are pushed, in those steps in which the schedule says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from sparkdl_comm.compress.part import Part
from sparkdl_comm.compress.schedule import density_at
from sparkdl_comm.compress.sparsifier import Sparsifier
from sparkdl_comm.conf import CommConf, Compression
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import StepInfo


def sparse_bytes(elements: int, density: float) -> int:
    """About what a layer's block takes: see SparseEncoding.scala."""
    return 1 + round(elements * min(6 * density, 4))


class SparsePushes:
    """Of one rank.

    Steps: those of the push.
    Bytes on the wire: 6 for each element that is not zero, 4 for each in dense steps.

    :param gradients: float32, flat, of the whole model: what is pushed.
    """

    def __init__(
        self, compression: Compression, conf: CommConf, rank: int, model: FlatModel, gradients: torch.Tensor
    ) -> None:
        self._compression, self._schedule, self._gradients = compression, conf.compression_schedule, gradients
        self._sparsifier = Sparsifier.of(compression, conf, rank)
        bounds = [entry.start for entry in model.entries]
        self._parts = [Part.of(layer.start, layer.start + layer.count, bounds) for layer in model.layers]
        self._density: float | None = None
        self._scale = 1.0

    def begin_step(self, info: StepInfo) -> None:
        """Which step it is."""
        self._density = density_at(self._schedule, self._compression.density, info.step, info.epoch)
        self._scale = info.loss_scale

    def compress(self, layers: Iterable[int]) -> None:
        """The gradients of these layers are complete: makes them what is to be pushed, in place."""
        for part in map(self._parts.__getitem__, layers):
            gradient = self._gradients[part.start : part.stop]
            if self._density is None:
                self._sparsifier.feedback.empty(part.start, gradient, self._scale, part.unused(gradient))
            else:
                self._sparsifier.thin(part, gradient, self._density, self._scale)

    def end_step(self, applied: bool) -> None:
        """As :meth:`BucketExchange.end_step`; likewise :meth:`state` and :meth:`load_state`."""
        self._sparsifier.feedback.settle(applied)

    def state(self) -> dict[str, Any]:
        return self._sparsifier.feedback.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self._sparsifier.feedback.load_state(state)
