"""Shared memory that this Python worker and its executor's JVM both map."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct

import torch

from sparkdl_comm.errors import PluginError

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
        error = torch.cuda.cudart().cudaHostRegister(base, len(self._memory), 0)
        if int(error) != 0:
            raise RuntimeError(
                f"CUDA error {int(error)}: {len(self._memory)} bytes cannot be page-locked. Check ulimit -l."
            )
        self._pinned = True

    def unpin(self) -> None:
        """Undo :meth:`pin`, if it was called."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self.view_floats(0, 1).data_ptr())
            self._pinned = False
