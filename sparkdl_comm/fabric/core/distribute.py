"""How models reach the workers that asked for them.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 10.3:
requests of a batch are answered with one version, through a tree of distributors. Who gets it from whom is found by
algorithm 3 in the network in which everything flows the other way. The servers send to the distributor of the last group
first, then to the one before it; those whose updates would go straight to the servers get the model straight from them, at
last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl_comm.fabric.core.aggregate import aggregate
from sparkdl_comm.fabric.core.bandwidth import Residual, Spans, end
from sparkdl_comm.fabric.core.order import Job, order


@dataclass(frozen=True)
class Branch:
    """Workers that get the model together.

    ``members``: indices of jobs. ``distributor``: its number, or None if the only member gets it straight from the servers.
    ``arrivals``: the schedules from each server to the distributor, or to that member. ``onward``: the schedule from the
    distributor to each member, empty if there is none.
    """

    members: list[int]
    distributor: int | None
    arrivals: list[Spans]
    onward: list[Spans]


def distribute(
    jobs: Sequence[Job],
    network: Residual,
    servers: Sequence[int],
    distributors: Sequence[int],
    now: float,
    following: float = 0.0,
) -> list[Branch]:
    """The branches in the order in which the servers send to them, reserved in ``network``.

    :param jobs: of each request the worker's host, and the bytes of each server's component.
    :param distributors: the host of each, in the order in which they are to be used. ``following``: as that of
        :func:`~sparkdl_comm.fabric.core.aggregate.aggregate`.
    """
    mirrored = network.mirrored()
    placed = order(jobs, mirrored, servers, now).kept
    branches = []
    for group in reversed(aggregate(jobs, placed, mirrored, servers, distributors, now, following=following)):
        first = jobs[group.members[0]]
        receiver = first.host if group.aggregator is None else distributors[group.aggregator]
        arrivals, onward = [], []
        for server, size in zip(servers, first.sizes, strict=True):
            arrivals.append(network.fill(server, receiver, size, now))
            network.reserve(server, receiver, arrivals[-1])
        if group.aggregator is not None:
            ready = max(end(schedule, now) for schedule in arrivals)
            for index in group.members:
                onward.append(network.fill(receiver, jobs[index].host, sum(jobs[index].sizes), ready))
                network.reserve(receiver, jobs[index].host, onward[-1])
        branches.append(Branch(group.members, group.aggregator, arrivals, onward))
    return branches
