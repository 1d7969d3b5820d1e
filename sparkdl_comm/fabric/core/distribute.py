"""Distribution of models to the workers that asked for them.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 10.3:
all requests of a batch get one version, through a tree of distributors. Algorithm 3, run on the network with every
direction reversed, finds the tree. The servers send to the distributor of the last group first, then to the one
before it. Workers whose updates would go straight to the servers get the model straight from them, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl_comm.fabric.core.aggregate import aggregate
from sparkdl_comm.fabric.core.order import Job, order
from sparkdl_comm.fabric.core.residual_network import ResidualNetwork, Spans, get_end


@dataclass(frozen=True)
class Branch:
    """Workers that get the model together.

    - ``members``: indices of jobs.
    - ``distributor``: index of the distributor, or None if the only member gets the model straight from the servers.
    - ``arrivals``: schedule from each server to the distributor, or to that member.
    - ``onward``: schedule from the distributor to each member. Empty without distributor.
    """

    members: list[int]
    distributor: int | None
    arrivals: list[Spans]
    onward: list[Spans]


def distribute(
    jobs: Sequence[Job],
    network: ResidualNetwork,
    servers: Sequence[int],
    distributors: Sequence[int],
    now: float,
    link_weight: float = 0.0,
) -> list[Branch]:
    """Return the branches in the order in which the servers send to them, with bandwidth reserved in ``network``.

    :param jobs: each request's worker host and the bytes of each server's component.
    :param distributors: host of each distributor, in the order of use.
    :param link_weight: see :func:`~sparkdl_comm.fabric.core.aggregate.aggregate`.
    """
    mirrored = network.mirrored()
    placed = order(jobs, mirrored, servers, now).kept
    branches = []
    for group in reversed(aggregate(jobs, placed, mirrored, servers, distributors, now, link_weight=link_weight)):
        first = jobs[group.members[0]]
        receiver = first.host if group.aggregator is None else distributors[group.aggregator]
        arrivals, onward = [], []
        for server, size in zip(servers, first.sizes, strict=True):
            arrivals.append(network.fill(server, receiver, size, now))
            network.reserve(server, receiver, arrivals[-1])
        if group.aggregator is not None:
            ready = max(get_end(schedule, now) for schedule in arrivals)
            for index in group.members:
                onward.append(network.fill(receiver, jobs[index].host, sum(jobs[index].sizes), ready))
                network.reserve(receiver, jobs[index].host, onward[-1])
        branches.append(Branch(group.members, group.aggregator, arrivals, onward))
    return branches
