"""Classification of torch.distributed's errors.

Errors of gloo are plain RuntimeErrors that differ only in their text. This module is the only one that looks at this
text.
"""

from __future__ import annotations

import re

from torch.distributed import DistNetworkError

_LATE = re.compile(r"timed out|operation timeout", re.IGNORECASE)
# Messages of the backends and the kernel about a peer that disconnected.
_GONE = re.compile(
    r"connection (closed|reset|refused)|closed by peer|broken pipe|socket (is )?closed|pair closure"
    r"|nccl communicator was aborted|ncclRemoteError|remote process exited",
    re.IGNORECASE,
)


def is_peer_late(exc: BaseException) -> bool:
    """Return whether an operation timed out waiting for another rank."""
    return isinstance(exc, RuntimeError) and bool(_LATE.search(str(exc)))


def is_peer_failure(exc: BaseException) -> bool:
    """Return whether another rank is late, or has disconnected."""
    if isinstance(exc, DistNetworkError):
        return True
    return is_peer_late(exc) or (isinstance(exc, RuntimeError) and bool(_GONE.search(str(exc))))
