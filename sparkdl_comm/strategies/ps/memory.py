"""Memory that a rank of strategy ps shares with its executor's JVM: parameters, gradients, exact values of the shard."""

from __future__ import annotations

from typing import Any

import torch

from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.optim.parallel import Ranks
from sparkdl_comm.optim.shard import Shard
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.ps.segment import SharedSegment


class ParameterMemory:
    """Shared memory of one rank. ``layout``: offsets in bytes, from the JVM's answer to ``open``; see SegmentMap.scala.

    ``values`` and ``gradients``: flat float32 vectors of the whole model in host memory. A model on the CPU computes in them.
    A model on a GPU is copied to and from them.
    """

    def __init__(self, layout: dict[str, Any], model: FlatModel) -> None:
        self._layout, self._model = layout, model
        self._segment = SharedSegment(layout["segment_bytes"])
        self._versions = [self._segment.view_floats(offset, model.count) for offset in layout["parameters_offsets"]]
        self.values = self._versions[0]
        self.gradients = self._segment.view_floats(layout["gradients_offset"], model.count)

    @property
    def path(self) -> str:
        """Path at which the JVMs of this host can open the memory, until :meth:`close`."""
        return self._segment.path

    def bind(self) -> None:
        """Move the model's parameters and gradients into this memory. If it is on a GPU, move them into flat GPU memory."""
        model = self._model
        device = next(model.module.parameters()).device
        if device.type == "cuda":
            self._segment.pin()
            model.bind(torch.empty(model.count, device=device), torch.zeros(model.count, device=device))
            self.values.copy_(model.values)
        else:
            model.bind(self.values, self.gradients)

    def make_shard(self, make_optimizer: OptimizerMaker, ranks: Ranks) -> Shard:
        """Return the shard that this rank updates, initialized with the model's values. ``ranks``: all servers."""
        owned = []
        for piece in self._layout["shard"]:
            start, count = piece["start"], piece["count"]
            exact = self._segment.view_floats(piece["master_offset"], count)
            exact.copy_(self.values[start : start + count])
            owned.append((start, exact))
        return Shard(self._model, owned, self.gradients, make_optimizer, ranks)

    def use_version(self, version: int) -> None:
        """Let the model compute with ``version`` from now on. Does nothing if there is memory for one version only."""
        if len(self._versions) > 1:
            self._model.move(self._versions[version % 2])

    def count_summed(self, version: int) -> int:
        """Return how many batches of gradients of ``version`` the JVM has summed. Reads shared memory, sends no request."""
        summed_version, batches = divmod(
            self._segment.read_number(self._layout["summed_offset"]), self._layout["summed_version"]
        )
        return batches if summed_version == version else 0

    def close(self) -> None:
        self._segment.detach()
        self._segment.unpin()
