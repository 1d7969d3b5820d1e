"""Registry of the algorithms, with their operations and the topologies that they run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkdl_comm.collectives.plan import Collective, Operation, Plan
from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology

#: Operations of algorithms whose all-reduce is a reduce-scatter and an all-gather.
SCATTERED: tuple[Operation, ...] = ("all_reduce", "reduce_scatter", "all_gather")


def anywhere(topology: Topology) -> str:
    return ""


def one_rail(topology: Topology) -> str:
    return "" if topology.rails == 1 else f"its partners share no switch on {topology.text}"


def no_blocks(topology: Topology) -> float:
    return 0.0


@dataclass(frozen=True)
class Algorithm:
    """Algorithm for collectives.

    ``plan``: function that returns the plan of a collective. ``unfit(topology)``: reason why the algorithm cannot run
    there; empty if it can. ``depth(topology)``: time to fill the pipeline, in block times, divided by the messages per
    block and NIC. A chain of N ranks has N - 1. 0 means that the algorithm is not pipelined.
    """

    name: str
    plan: Callable[[Collective], Plan]
    operations: tuple[Operation, ...]
    unfit: Callable[[Topology], str] = anywhere
    depth: Callable[[Topology], float] = no_blocks


#: Algorithms by name, in the order of registration. Of two with the same predicted time, the first one is used.
ALGORITHMS: dict[str, Algorithm] = {}


def register(algorithm: Algorithm) -> None:
    """Register an algorithm as a strategy, for :class:`sparkdl_comm.Communicator` and for ``sparkdl-comm explain``.

    :raises ConfError: the name is taken.
    """
    if algorithm.name in ALGORITHMS:
        raise ConfError(f"algorithm {algorithm.name!r} is registered already")
    ALGORITHMS[algorithm.name] = algorithm


def make_plan(name: str, collective: Collective) -> Plan:
    """Return the plan of the algorithm called ``name``.

    :raises ConfError: the algorithm is unknown, does not support the operation, or cannot run on the topology.
    """
    if name not in ALGORITHMS:
        raise ConfError(f"algorithm {name!r}: there are {', '.join(ALGORITHMS)}")
    algorithm = ALGORITHMS[name]
    if collective.operation not in algorithm.operations:
        raise ConfError(f"{name} supports {', '.join(algorithm.operations)}, not {collective.operation}")
    reason = algorithm.unfit(collective.topology)
    if reason:
        raise ConfError(f"{name} cannot run on {collective.topology}: {reason}")
    return algorithm.plan(collective)
