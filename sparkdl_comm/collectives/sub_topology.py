"""Topology of some of a topology's ranks, for their own collectives. Pure.

Ranks keep their hosts and rails. A part of a BCube must be a smaller BCube or a row of it, since every algorithm needs
direct links between neighbors. Ranks with one NIC each are always on one switch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology


class SubTopology(NamedTuple):
    """Topology of some ranks, and its relation to the whole topology.

    ``order[place]``: index, in the given list of ranks, of rank ``place`` of :attr:`topology`. ``rails[rail]``: rail of
    the whole topology that is rail ``rail`` here.
    """

    topology: Topology
    order: list[int]
    rails: tuple[int, ...]


def sub_topology(topology: Topology, ranks: Sequence[int]) -> SubTopology:
    """Return the topology of ``ranks``, which are distinct ranks of ``topology`` in any order.

    If some hosts have more of these ranks than others, each rank counts as a host of its own, as in the whole topology.

    :raises ConfError: some of the ranks' hosts share no switch, and these hosts form no BCube.
    """
    order = sorted(range(len(ranks)), key=ranks.__getitem__)
    if len(ranks) == topology.world:
        return SubTopology(topology, order, tuple(range(topology.rails)))
    host_indices = [topology.host_of(ranks[index]).index for index in order]
    hosts = sorted(set(host_indices))
    digits = [sorted(set(row)) for row in zip(*map(topology.digits, hosts), strict=True)]
    rails = tuple(rail for rail, different in enumerate(digits) if len(different) > 1) or (0,)
    grid_hosts = [topology.host_at(address).index for address in itertools.product(*digits)]
    if sorted(grid_hosts) != hosts:
        raise ConfError(
            f"ranks {sorted(ranks)} of {topology} are on hosts {hosts}, and some of these hosts share no switch. Choose hosts"
            f" that differ in one digit only, or that form a smaller BCube, such as all of {sorted(grid_hosts)}"
        )
    counts = {host_indices.count(host) for host in hosts}
    slots = counts.pop() if len(counts) == 1 else 1
    if slots > 1:
        text = f"hosts:{len(hosts)}x{slots}"
    elif len(rails) > 1:
        text = "bcube:" + "x".join(str(len(digits[rail])) for rail in rails)
    else:
        text = f"star:{len(ranks)}"
    part = Topology.parse(text)
    if topology.rates:
        part = part.with_rates(*(topology.rates[rail] for rail in rails))
    return SubTopology(part, order, rails)
