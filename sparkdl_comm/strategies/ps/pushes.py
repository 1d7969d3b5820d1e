"""Gradients of which only the largest elements of each layer are pushed, in those steps in which the schedule says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from sparkdl_comm.compress.part import Part
from sparkdl_comm.compress.schedule import density_at
from sparkdl_comm.compress.sparsifier import Sparsifier
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import StepInfo


class WholePushes:
    """Gradients are pushed as they are."""

    def begin_step(self, info: StepInfo) -> None:
        """Which step it is."""

    def compress(self, layers: Iterable[int]) -> bool:
        """The gradients of these layers are complete: makes them what is to be pushed, in place. Whether that took time."""
        return False

    def end_step(self, applied: bool) -> None:
        """As :meth:`BucketExchange.end_step`; likewise :meth:`state` and :meth:`load_state`."""

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


class SparsePushes(WholePushes):
    """The largest elements of each layer, of one rank.

    Steps: those of the push.
    Bytes on the wire: 6 for each element that is not zero, 4 for each in dense steps.

    :param conf: with a compression.
    :param gradients: float32, flat, of the whole model: what is pushed.
    """

    def __init__(self, conf: CommConf, rank: int, model: FlatModel, gradients: torch.Tensor) -> None:
        assert conf.compression is not None
        self._compression, self._schedule, self._gradients = conf.compression, conf.compression_schedule, gradients
        self._sparsifier = Sparsifier.of(conf.compression, conf, rank)
        bounds = [entry.start for entry in model.entries]
        self._parts = [Part.of(layer.start, layer.start + layer.count, bounds) for layer in model.layers]
        self._density: float | None = None
        self._scale = 1.0

    @staticmethod
    def check(conf: CommConf) -> None:
        """:raises ConfError: settings of compression that the server cannot carry out."""
        if conf.compression is None:
            return
        refused = {
            "": conf.compression if conf.compression.rank else None,
            ".schedule": conf.compression_schedule if conf.compression_schedule.auto else None,
            ".values": conf.compression_values if conf.compression_values != "fp32" else None,
            ".momentum": conf.compression_momentum or None,
        }
        for name, value in refused.items():
            if value is not None:
                raise ConfError(
                    f"{PREFIX}compression{name}={value}: strategy ps pushes the largest elements, as fp32, without momentum"
                    " correction or a trial; strategies that all-reduce, such as auto, can"
                )

    def begin_step(self, info: StepInfo) -> None:
        density = density_at(self._schedule, self._compression.density, info.step, info.epoch)
        self._density = None if info.dense else density
        self._scale = info.loss_scale

    def compress(self, layers: Iterable[int]) -> bool:
        for part in map(self._parts.__getitem__, layers):
            gradient = self._gradients[part.start : part.stop]
            if self._density is None:
                self._sparsifier.feedback.empty(part.start, gradient, self._scale, part.unused(gradient))
            else:
                self._sparsifier.thin(part, gradient, self._density, self._scale)
        return True

    def end_step(self, applied: bool) -> None:
        self._sparsifier.feedback.settle(applied)

    def state(self) -> dict[str, Any]:
        return self._sparsifier.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self._sparsifier.load_state(state)
