"""The user's optimizer and learning-rate scheduler, applied to the parameters that a rank updates.

``optimizer.py`` has the user's settings, creates the optimizer and steps the scheduler. ``shard.py`` runs the optimizer over
stripes of parameters, and moves its state between partitions. ``elementwise.py`` tests whether an optimizer may update
stripes.

``layerwise.py`` has the optimizers for large batches, LARS and LAMB. They need norms of whole parameters, which ranks compute
in parts. ``parallel.py`` distributes such work over the ranks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl_comm.optim.layerwise import LAMB, LARS

__all__ = ["LAMB", "LARS"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".layerwise", __name__), name)
