"""What is said of an algorithm beside its plans: what it does, and on which topologies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkdl_comm.collectives.plan import Collective, Operation, Plan
from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology

#: Operations of algorithms that leave the vector scattered half-way through an all-reduce.
SCATTERED: tuple[Operation, ...] = ("all_reduce", "reduce_scatter", "all_gather")


def anywhere(topology: Topology) -> str:
    return ""


def one_rail(topology: Topology) -> str:
    return "" if topology.rails == 1 else f"its partners share no switch on {topology.text}"


def no_blocks(topology: Topology) -> float:
    return 0.0


@dataclass(frozen=True)
class Algorithm:
    """``plan``: the programs of all ranks for a collective. ``unfit(topology)``: why it cannot run there, empty if it can.
    ``depth(topology)``: the time that its pipeline takes to fill, in block times, divided by the messages per block and NIC (a
    chain of N ranks: N - 1); 0: it is not pipelined."""

    name: str
    plan: Callable[[Collective], Plan]
    operations: tuple[Operation, ...]
    unfit: Callable[[Topology], str] = anywhere
    depth: Callable[[Topology], float] = no_blocks


#: By name, in the order in which they were registered. Of two that are predicted to be as fast, the first one is taken.
ALGORITHMS: dict[str, Algorithm] = {}


def register(algorithm: Algorithm) -> None:
    """Makes it a strategy, an algorithm of :class:`sparkdl_comm.Communicator` and a row of ``sparkdl-comm explain``.

    :raises ConfError: the name is taken.
    """
    if algorithm.name in ALGORITHMS:
        raise ConfError(f"algorithm {algorithm.name!r} is registered already")
    ALGORITHMS[algorithm.name] = algorithm


def make_plan(name: str, collective: Collective) -> Plan:
    """The plan of the algorithm called ``name``.

    :raises ConfError: no such algorithm, or it cannot do this operation or run on this topology.
    """
    if name not in ALGORITHMS:
        raise ConfError(f"algorithm {name!r}: there are {', '.join(ALGORITHMS)}")
    algorithm = ALGORITHMS[name]
    if collective.operation not in algorithm.operations:
        raise ConfError(f"{name} does {', '.join(algorithm.operations)}, not {collective.operation}")
    reason = algorithm.unfit(collective.topology)
    if reason:
        raise ConfError(f"{name} cannot run on {collective.topology}: {reason}")
    return algorithm.plan(collective)
