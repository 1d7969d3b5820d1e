"""Trying networks and strategies on one machine: emulated networks, benchmarks, emulated computing.

:class:`Lab` makes a network and runs programs on it. Names are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl_comm.lab.cluster import Cluster, Result
    from sparkdl_comm.lab.network import Lab, Traffic
    from sparkdl_comm.lab.place import Place
    from sparkdl_comm.lab.rates import LinkRate, RateSchedule
    from sparkdl_comm.lab.removal import remove

__all__ = ["Cluster", "Lab", "LinkRate", "Place", "RateSchedule", "Result", "Traffic", "remove"]

_HOME = {
    "Cluster": "cluster",
    "Lab": "network",
    "LinkRate": "rates",
    "Place": "place",
    "RateSchedule": "rates",
    "Result": "cluster",
    "Traffic": "network",
    "remove": "removal",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("." + _HOME[name], __name__), name)
