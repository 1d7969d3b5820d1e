"""Algorithms of the collectives, one per file.

A file has the pure function ``plan(collective)`` and registers the algorithm's abilities (:func:`base.register`).
Several algorithms share ``levels.py``, exchanges level by level, and ``groups.py``, steps within a group of ranks.

The docstring of a file has two fixed lines, *Steps* and *Bytes on the wire*. There, N ranks have vectors of n bytes, in
blocks of b bytes. ``cost.py`` defines alpha, beta and gamma.
"""

from __future__ import annotations

from importlib import import_module

from sparkdl_comm.collectives.algorithms.base import ALGORITHMS, Algorithm, make_plan, register

__all__ = ["ALGORITHMS", "Algorithm", "make_plan", "register"]

for _file in ("bml", "lp", "ring", "mst", "be", "torus2d", "hierarchical", "p2p_ps", "tree"):
    import_module(f"{__name__}.{_file}")
