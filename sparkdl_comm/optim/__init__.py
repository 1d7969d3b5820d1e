"""The user's optimizer and learning-rate scheduler, applied to the parameters that a rank updates.

``optimization.py`` holds the user's settings. ``optimizer.py`` creates the optimizer, over whole parameters or over the
stripes of a ``shard.py``. ``elementwise.py`` tests whether an optimizer may update stripes. ``whole_state.py`` converts
an optimizer's state between partitions.
``schedule.py`` steps the scheduler.

The optimizers for large batches, ``lars.py`` and ``lamb.py``, share ``layerwise.py``: they need norms of whole
parameters (``norms.py``), which ranks compute in parts. ``parallel.py`` distributes such work over the ranks.
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
