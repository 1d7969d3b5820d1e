"""Which topology the ranks are in, from the networks of their NICs, and where in it each rank is. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from sparkdl_comm.errors import ConfError
from sparkdl_comm.gang.listen import RAILS_KEY
from sparkdl_comm.gang.members import Member
from sparkdl_comm.topology import MAX_HOSTS, Topology

TOPOLOGY_KEY = "spark.sparkdl.comm.topology"


def arrange(members: Sequence[Member], text: str = "") -> tuple[Topology, list[int]]:
    """Returns (topology, order); ``order[r]`` is the number of the member placed at the topology's rank ``r``.

    With several rails, members are where their networks say: on rail l a network joins those that differ in digit l alone.
    With one, those of one host stand together if all hosts have equally many.

    :param text: of the topology, if the user gave one; then it must fit.
    :raises ConfError: it does not, or members have different numbers of rails, or networks that make no BCube.
    """
    rails = len(members[0].rails)
    short = [member.rank for member in members if len(member.rails) != rails]
    if short:
        raise ConfError(f"ranks {short} have not the {rails} rails that rank 0 has: set {RAILS_KEY} alike everywhere")
    known = given(text, len(members), rails) if text else None
    networks = [[member.rails[rail].network for member in members] for rail in range(rails)]
    if rails > 1 and (known is None or any(len(set(row)) > 1 for row in networks)):
        radices, order = _cube(networks)
        if known is None:
            return Topology.parse("bcube:" + "x".join(map(str, radices))), order
        if known.radices != radices:
            raise ConfError(f"{TOPOLOGY_KEY}={text}, but the rails' networks join {_times(radices)} hosts")
        return known, order
    hosts = [member.rails[0].address for member in members]
    order = sorted(range(len(members)), key=lambda rank: (hosts.index(hosts[rank]), rank))
    counts = {hosts.count(host) for host in hosts}
    if known is not None:
        return known, order if counts == {known.slots} else list(range(len(members)))
    if len(set(hosts)) > 1 and len(counts) == 1 and counts != {1}:
        return Topology.parse(f"hosts:{len(set(hosts))}x{counts.pop()}"), order
    return Topology.parse(f"star:{len(members)}"), list(range(len(members)))


def shapes(world: int) -> list[str]:
    """Topologies of several rails that have this many ranks: equal radices first."""
    found = []
    for k in range(2, math.floor(math.log2(min(world, MAX_HOSTS))) + 1):
        n = round(world ** (1 / k))
        if n >= 2 and n**k == world:
            found.append(f"bcube:{n},{k}")
    pairs = ((a, world // a) for a in range(2, math.isqrt(world) + 1) if world % a == 0 and a * a != world)
    return found + [f"bcube:{a}x{b}" for a, b in pairs]


def given(text: str, world: int, rails: int) -> Topology:
    """The topology that the user gave.

    :raises ConfError: it is not one of ``world`` ranks with ``rails`` NICs each.
    """
    topology = Topology.parse(text)
    if topology.world != world:
        possible = ", ".join([f"star:{world}", *shapes(world)])
        raise ConfError(f"{TOPOLOGY_KEY}={topology} has {topology.world} ranks, not {world}; {world} fit {possible}")
    if topology.rails != rails:
        raise ConfError(
            f"{TOPOLOGY_KEY}={topology} has {topology.rails} rails, but {RAILS_KEY} names {rails}: name a NIC for each"
        )
    return topology


def _cube(networks: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], list[int]]:
    """Radices and order of the BCube in which rail r of member m is on ``networks[r][m]``.

    Digit l of two members is equal exactly if they reach each other over the other rails: what these connect is one group.
    """
    world = len(networks[0])
    digits = []
    for level in range(len(networks)):
        groups = _connected([row for rail, row in enumerate(networks) if rail != level], world)
        digits.append([sorted(set(groups)).index(group) for group in groups])
    radices = tuple(max(row) + 1 for row in digits)
    strides = [math.prod(radices[:level]) for level in range(len(radices))]
    places = [sum(row[m] * stride for row, stride in zip(digits, strides, strict=True)) for m in range(world)]
    segments = [
        len({tuple(digits[other][m] for other in range(len(digits)) if other != rail) for m in range(world)})
        for rail in range(len(networks))
    ]
    if (
        sorted(places) != list(range(math.prod(radices)))
        or min(radices) < 2
        or any(len(set(row)) != count for row, count in zip(networks, segments, strict=True))
    ):
        seen = "; ".join(f"rail {rail}: {', '.join(sorted(set(row)))}" for rail, row in enumerate(networks))
        possible = ", ".join(shapes(world)) or "none"
        raise ConfError(
            f"the networks of {world} ranks are those of no BCube ({seen}): set {RAILS_KEY}; shapes for {world}: {possible}"
        )
    return radices, sorted(range(world), key=places.__getitem__)


def _connected(rows: Sequence[Sequence[str]], world: int) -> list[int]:
    """For each member the first one that it reaches over these rails."""
    group = list(range(world))
    for row, (one, other) in itertools.product(rows, itertools.combinations(range(world), 2)):
        if row[one] == row[other] and group[one] != group[other]:
            low, high = sorted((group[one], group[other]))
            group = [low if g == high else g for g in group]
    return group


def _times(radices: Sequence[int]) -> str:
    return "x".join(map(str, radices))
