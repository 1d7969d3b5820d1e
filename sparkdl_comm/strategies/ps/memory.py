"""Memory that a rank of strategy ps shares with its executor's JVM: parameters, gradients and master weights.

The master weights are the float32 values of the rank's shard, which its optimizer updates. The model computes with the
parameters, which are rounded if ``ps.wire`` is bf16 or fp16.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Any

import torch

from sparkdl_comm.errors import PluginError
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.optim.parallel import Ranks
from sparkdl_comm.optim.shard import Shard
from sparkdl_comm.space.flat import FlatModel

_NUMBER = struct.Struct("=q")


class SharedSegment:
    """Shared memory of ``size`` bytes, initially zero. Until :meth:`detach`, processes of the same user can map :attr:`path`.

    It has no name in any file system (memfd_create), so nothing can be left behind: the kernel frees it with the last mapping,
    however the processes end. The size of /dev/shm does not limit it.
    """

    def __init__(self, size: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise PluginError("strategy ps needs memfd_create, which only Linux has. Use another strategy.")
        self._fd: int | None = os.memfd_create("sparkdl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, size)
            # Reading a truncated mapping raises SIGBUS, so the size is sealed.
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._memory = mmap.mmap(self._fd, size)
            self._pinned = False
        except OSError:
            self.detach()
            raise

    @property
    def path(self) -> str:
        """Path at which other processes of this user can open the memory; valid until :meth:`detach`."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def detach(self) -> None:
        """Close the file. The mappings stay. Repeated calls do nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def view_floats(self, offset: int, count: int) -> torch.Tensor:
        """Return a float32 view of ``count`` elements at byte ``offset``. The view keeps the mapping alive."""
        if count == 0:
            return torch.empty(0)
        return torch.frombuffer(self._memory, dtype=torch.float32, count=count, offset=offset)

    def read_number(self, offset: int) -> int:
        """Return the 64-bit integer at byte ``offset``, which the JVM writes."""
        return int(_NUMBER.unpack_from(self._memory, offset)[0])

    def pin(self) -> None:
        """Page-lock the memory for CUDA, so that copies to and from a GPU use DMA.

        :raises RuntimeError: CUDA cannot lock so many bytes.
        """
        base = self.view_floats(0, 1).data_ptr()
        error = torch.cuda.cudart().cudaHostRegister(base, len(self._memory), 0)  # type: ignore[no-untyped-call]
        if int(error) != 0:
            raise RuntimeError(
                f"CUDA error {int(error)}: {len(self._memory)} bytes cannot be page-locked. Check ulimit -l."
            )
        self._pinned = True

    def unpin(self) -> None:
        """Undo :meth:`pin`, if it was called."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self.view_floats(0, 1).data_ptr())  # type: ignore[no-untyped-call]
            self._pinned = False


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
        if model.device.type == "cuda":
            self._segment.pin()
            model.bind()
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
