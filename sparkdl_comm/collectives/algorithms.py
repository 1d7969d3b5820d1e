"""The algorithms there are, by name, what they can do, and on which topologies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sparkdl_comm.collectives import be, bml, hierarchical, lp, mst, p2p_ps, ring, torus2d
from sparkdl_comm.collectives.plan import OPERATIONS, Collective, Operation, Plan
from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology


def _anywhere(topology: Topology) -> str:
    return ""


def _one_rail(topology: Topology) -> str:
    return "" if topology.rails == 1 else f"its partners share no switch on {topology.text}"


def _one_rank_per_host(topology: Topology) -> str:
    return "" if topology.slots == 1 else f"it takes one rank per host, {topology.text} has {topology.slots}"


def _groups(topology: Topology) -> str:
    if topology.rails == 1 and len(hierarchical.group_radices(topology)) > 1:
        return ""
    return f"{topology.text} has no groups of ranks behind one NIC each; a Fat-Tree and hosts:MxS have"


def _two_rails(topology: Topology) -> str:
    return "" if topology.rails <= 2 else f"{topology.text} has {topology.rails} rails: the torus has two dimensions"


def _no_blocks(topology: Topology) -> float:
    return 0.0


def _chain_depth(topology: Topology) -> float:
    return topology.world - 1.0


def _rounds_depth(topology: Topology) -> float:
    # A round fills the rails once; in it each thread sends each neighbour on a rail two messages.
    messages = 2 * topology.rails * (max(topology.radices) - 1)
    return 0.0 if bml.is_even(topology) else 1 / messages


def _halvings_depth(topology: Topology) -> float:
    # A round fills the rail once; in it each rank sends two messages for each halving.
    return 1 / (2 * math.ceil(math.log2(topology.world))) if topology.world > 1 else 0.0


def _servers_depth(topology: Topology) -> float:
    # A round fills the rail once; in it each rank sends two messages for each other rank.
    return 1 / (2 * (topology.world - 1)) if topology.world > 1 else 0.0


@dataclass(frozen=True)
class Algorithm:
    """``unfit(topology)``: why it cannot run there, empty if it can. ``depth(topology)``: by how many blocks
    the pipeline takes longer than its bytes, for each message that a NIC sends per block; 0 if it does not cut into blocks."""

    name: str
    plan: Callable[[Collective], Plan]
    operations: tuple[Operation, ...]
    unfit: Callable[[Topology], str] = _anywhere
    depth: Callable[[Topology], float] = _no_blocks


#: Of algorithms by which ranks have parts of the vector in between.
_SCATTERED: tuple[Operation, ...] = ("all_reduce", "reduce_scatter", "all_gather")

ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("bml", bml.plan, _SCATTERED, _one_rank_per_host, _rounds_depth),
        Algorithm("lp", lp.plan, ("all_reduce", "broadcast", "reduce"), depth=_chain_depth),
        Algorithm("ring", ring.plan, _SCATTERED),
        Algorithm("mst", mst.plan, ("all_reduce", "broadcast", "reduce"), _one_rail),
        Algorithm("be", be.plan, OPERATIONS, _one_rail, _halvings_depth),
        Algorithm("torus2d", torus2d.plan, _SCATTERED, _two_rails),
        Algorithm("hierarchical", hierarchical.plan, _SCATTERED, _groups),
        Algorithm("p2p-ps", p2p_ps.plan, _SCATTERED, depth=_servers_depth),
    )
}


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
