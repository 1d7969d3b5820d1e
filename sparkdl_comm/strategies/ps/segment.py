"""Memory that this Python worker and its executor's JVM both map."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct

import torch

from sparkdl_comm.errors import PluginError

_NUMBER = struct.Struct("=q")


class SharedSegment:
    """Shared memory: ``size`` bytes of zeros, mapped here and, while :attr:`path` is open, mappable by a process of the same
    user.

    It has no name in any file system (memfd_create), so nothing can be left behind: the kernel frees it when the last
    mapping goes, whichever process dies in whatever way. It is not bound by the size of /dev/shm either.
    """

    def __init__(self, size: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise PluginError("strategy ps needs memfd_create, which only Linux has: use another strategy here")
        self._fd: int | None = os.memfd_create("sparkdl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, size)
            # A process that reads where a file was cut dies of it: nothing that this one does may cut it.
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._memory = mmap.mmap(self._fd, size)
            self._pinned = False
        except OSError:
            self.detach()
            raise

    @property
    def path(self) -> str:
        """Where other processes of this user open the memory; valid until :meth:`detach`."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def detach(self) -> None:
        """Closes the file, once; the mappings stay."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def floats(self, offset: int, count: int) -> torch.Tensor:
        """A float32 view of ``count`` elements at byte ``offset``. It keeps the mapping alive."""
        if count == 0:
            return torch.empty(0)
        return torch.frombuffer(self._memory, dtype=torch.float32, count=count, offset=offset)

    def number(self, offset: int) -> int:
        """The 64-bit integer at byte ``offset``, as the other side wrote it last."""
        return int(_NUMBER.unpack_from(self._memory, offset)[0])

    def pin(self) -> None:
        """Page-lock the memory for CUDA, so that copies to and from a GPU are DMA."""
        base = self.floats(0, 1).data_ptr()
        error = torch.cuda.cudart().cudaHostRegister(base, len(self._memory), 0)
        if int(error) != 0:
            raise RuntimeError(f"CUDA error {int(error)}: {len(self._memory)} bytes cannot be page-locked (ulimit -l?)")
        self._pinned = True

    def unpin(self) -> None:
        """Undo :meth:`pin`; nothing if it was not called."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self.floats(0, 1).data_ptr())
            self._pinned = False
