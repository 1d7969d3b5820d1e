"""Closing of inherited connections in a rank's forked children, such as a DataLoader's workers.

A child that outlives a killed rank would keep its connections open, and no peer would see an EOF.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class _Owner(Protocol):
    def sockets(self) -> list[Any]: ...


_owners: weakref.WeakSet[_Owner] = weakref.WeakSet()


def close_in_children(owner: _Owner) -> None:
    """Make forked children close all ``owner.sockets()``, everything with a file descriptor, as long as the owner
    lives.
    """
    if not _owners:
        os.register_at_fork(after_in_child=_close)
    _owners.add(owner)


def _close() -> None:
    for owner in list(_owners):
        for sock in owner.sockets():
            sock.close()  # never shutdown(): that would end the parent's connection too
    _owners.clear()
