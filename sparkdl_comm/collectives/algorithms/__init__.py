"""Algorithms of the collectives, one per file.

A file has the pure function ``plan(collective)`` and the description ``ALGORITHM``.
Several algorithms share ``levels.py``, exchanges level by level, and the ring of ``ring.py``.

The docstring of a file has two fixed sentences, *Steps* and *Bytes on the wire*. There, N ranks have vectors of n bytes, in
blocks of b bytes. ``collectives/cost.py`` defines alpha, beta and gamma.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import cast

from sparkdl_comm.collectives.plan import Algorithm, Collective, Plan
from sparkdl_comm.errors import ConfError

__all__ = ["ALGORITHMS", "Algorithm", "make_plan"]

#: Names in order of preference: of two algorithms that are predicted to be as fast, the first one is taken.
_NAMES = ("bml", "lp", "ring", "mst", "be", "torus2d", "hierarchical", "p2p-ps", "tree")


class _Algorithms(Mapping[str, Algorithm]):
    """Algorithms by name. A file is imported when its algorithm is first asked for."""

    def __getitem__(self, name: str) -> Algorithm:
        if name not in _NAMES:
            raise KeyError(name)
        return cast(Algorithm, import_module(f"{__name__}.{name.replace('-', '_')}").ALGORITHM)

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


#: Each is also a strategy, an algorithm of :class:`sparkdl_comm.Communicator` and a row of ``sparkdl-comm explain``.
ALGORITHMS: Mapping[str, Algorithm] = _Algorithms()


def make_plan(name: str, collective: Collective) -> Plan:
    """Return the plan of the algorithm called ``name``.

    :raises ConfError: the algorithm is unknown, does not support the operation, or cannot run on the topology.
    """
    if name not in ALGORITHMS:
        raise ConfError(f"algorithm {name!r}: there are {', '.join(ALGORITHMS)}")
    algorithm = ALGORITHMS[name]
    if collective.operation not in algorithm.operations:
        raise ConfError(f"{name} supports {', '.join(algorithm.operations)}, not {collective.operation}")
    reason = algorithm.why_ineligible(collective.topology)
    if reason:
        raise ConfError(f"{name} cannot run on {collective.topology}: {reason}")
    return algorithm.plan(collective)
