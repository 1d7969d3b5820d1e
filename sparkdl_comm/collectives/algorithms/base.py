"""Description of an algorithm: its operations, and the topologies that it runs on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkdl_comm.collectives.plan import Collective, Operation, Plan
from sparkdl_comm.topology import Topology

#: Operations of algorithms whose all-reduce is a reduce-scatter and an all-gather.
SCATTERED: tuple[Operation, ...] = ("all_reduce", "reduce_scatter", "all_gather")


def always_eligible(topology: Topology) -> str:
    return ""


def needs_one_rail(topology: Topology) -> str:
    return "" if topology.rails == 1 else f"its partners share no switch on {topology.text}"


def no_pipeline(topology: Topology) -> float:
    return 0.0


@dataclass(frozen=True)
class Algorithm:
    """Algorithm for collectives.

    ``plan``: function that returns the plan of a collective. ``why_ineligible(topology)``: reason why the algorithm cannot run
    there; empty if it can. ``depth(topology)``: time to fill the pipeline, in block times, divided by the messages per
    block and NIC. A chain of N ranks has N - 1. 0 means that the algorithm is not pipelined.
    """

    name: str
    plan: Callable[[Collective], Plan]
    operations: tuple[Operation, ...]
    why_ineligible: Callable[[Topology], str] = always_eligible
    depth: Callable[[Topology], float] = no_pipeline
