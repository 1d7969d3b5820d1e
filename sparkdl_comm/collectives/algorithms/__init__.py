"""The algorithms of the collectives, one file each.

A file has the pure function ``plan(collective)`` and registers what it can do (:func:`base.register`). What several of
them are made of: ``levels.py``, exchanges level by level; ``groups.py``, steps within a group of ranks.

Their docstrings open with two fixed lines, *Steps* and *Bytes on the wire*. In them N ranks have vectors of n bytes, in blocks
of b bytes; alpha, beta and gamma are those of ``cost.py``.
"""

from __future__ import annotations

from importlib import import_module

from sparkdl_comm.collectives.algorithms.base import ALGORITHMS, Algorithm, make_plan, register

__all__ = ["ALGORITHMS", "Algorithm", "make_plan", "register"]

for _file in ("bml", "lp", "ring", "mst", "be", "torus2d", "hierarchical", "p2p_ps", "tree"):
    import_module(f"{__name__}.{_file}")
