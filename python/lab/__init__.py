"""Lab: emulated networks on one machine, emulated compute times, and what the benchmarks share.

:class:`Lab` makes a network and runs programs on it. They can import this package. Names are imported at their first use.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.cluster import Cluster, Result
    from lab.network import Lab, Traffic
    from lab.place import Place
    from lab.rates import LinkRate, RateSchedule
    from lab.removal import remove

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

_FOLDER = str(Path(__file__).parents[1])
_PATH = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if _FOLDER not in _PATH:
    os.environ["PYTHONPATH"] = os.pathsep.join([_FOLDER, *filter(None, _PATH)])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("." + _HOME[name], __name__), name)
