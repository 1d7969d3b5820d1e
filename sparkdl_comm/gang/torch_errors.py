"""What the errors of torch.distributed mean. Those of gloo are plain RuntimeErrors which nothing but their text tells apart;
this is the only place where that text is looked at."""

from __future__ import annotations

import re

from torch.distributed import DistNetworkError

_LATE = re.compile(r"timed out|operation timeout", re.IGNORECASE)
# What the backends and the kernel say when it is the peer that went away.
_GONE = re.compile(
    r"connection (closed|reset|refused)|closed by peer|broken pipe|socket (is )?closed|pair closure"
    r"|nccl communicator was aborted|ncclRemoteError|remote process exited",
    re.IGNORECASE,
)


def peer_late(exc: BaseException) -> bool:
    """Whether an operation gave up waiting for another rank."""
    return isinstance(exc, RuntimeError) and bool(_LATE.search(str(exc)))


def peer_failed(exc: BaseException) -> bool:
    """Whether it is another rank that is late, or went away."""
    if isinstance(exc, DistNetworkError):
        return True
    return peer_late(exc) or (isinstance(exc, RuntimeError) and bool(_GONE.search(str(exc))))
