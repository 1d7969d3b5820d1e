"""The user's optimizer and learning-rate scheduler, over what a rank updates: ``optimizer.py`` makes it, over whole
parameters or over the stripes of a ``shard.py``; ``elementwise.py`` tries out whether it may update stripes;
``schedule.py`` steps the scheduler; ``optimization.py`` is what the user said of it all.

Optimizers for large batches, ``lars.py`` and ``lamb.py``, are ``layerwise.py``: they need norms of whole parameters, which
ranks compute in parts (``norms.py``). ``parallel.py`` deals such work out over the ranks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl_comm.optim.lamb import LAMB
    from sparkdl_comm.optim.lars import LARS

__all__ = ["LAMB", "LARS"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{name.lower()}", __name__), name)
