"""The memory that a rank of strategy ps shares with its executor's JVM: parameters, gradients, the shard's exact values."""

from __future__ import annotations

from typing import Any

import torch

from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.optim.parallel import Ranks
from sparkdl_comm.optim.shard import Shard
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.ps.segment import SharedSegment


class ParameterMemory:
    """The shared memory of one rank. ``layout``: the JVM's answer to ``open``, in bytes, see SegmentMap.scala.

    ``values`` and ``gradients``: flat, float32, of the whole model, on the host. A model on the CPU computes in them, one on
    a GPU is copied from and to them.
    """

    def __init__(self, layout: dict[str, Any], model: FlatModel) -> None:
        self._layout, self._model = layout, model
        self._segment = SharedSegment(layout["segment_bytes"])
        self._versions = [self._segment.floats(offset, model.count) for offset in layout["parameters_offsets"]]
        self.values = self._versions[0]
        self.gradients = self._segment.floats(layout["gradients_offset"], model.count)

    @property
    def path(self) -> str:
        """Where JVMs of this host open it, until :meth:`close`."""
        return self._segment.path

    def bind(self) -> None:
        """Moves the model's parameters and gradients here, or, of a model on a GPU, into flat memory over there."""
        model = self._model
        device = next(model.module.parameters()).device
        if device.type == "cuda":
            self._segment.pin()
            model.bind(torch.empty(model.count, device=device), torch.zeros(model.count, device=device))
            self.values.copy_(model.values)
        else:
            model.bind(self.values, self.gradients)

    def shard(self, make_optimizer: OptimizerMaker, ranks: Ranks) -> Shard:
        """The values that this rank updates, as the model has them now. ``ranks``: all servers."""
        owned = []
        for piece in self._layout["shard"]:
            start, count = piece["start"], piece["count"]
            exact = self._segment.floats(piece["master_offset"], count)
            exact.copy_(self.values[start : start + count])
            owned.append((start, exact))
        return Shard(self._model, owned, self.gradients, make_optimizer, ranks)

    def use(self, version: int) -> None:
        """Has the model compute with ``version`` from now on, if versions have memory of their own."""
        if len(self._versions) > 1:
            self._model.move(self._versions[version % 2])

    def summed(self, version: int) -> int:
        """How many batches of gradients of ``version`` the JVM has added up, without asking it."""
        found, batches = divmod(self._segment.number(self._layout["summed_offset"]), self._layout["summed_version"])
        return batches if found == version else 0

    def close(self) -> None:
        self._segment.detach()
        self._segment.unpin()
