"""Discovery of the network: the topology, from the networks of the ranks' NICs, and the cost of messages and bytes.

A part of the ranks has a topology of its own. Ranks keep their hosts and rails. A part of a BCube must be a smaller
BCube or a row of it, since every algorithm needs direct links between neighbors. Ranks with one NIC each are always on
one switch.

Costs are measured before the first collective. Spark reuses Python workers. So each process caches the costs that it
measured between a set of hosts. The next gang of the same hosts takes them if one of its ranks has them.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch

from sparkdl_comm.collectives.cost import LOCAL_BETA, Cost
from sparkdl_comm.collectives.engine import Engine
from sparkdl_comm.collectives.engine.peer_memory import Gather
from sparkdl_comm.collectives.plan import Collective, Plan, Program, Step, StepKind
from sparkdl_comm.errors import ConfError
from sparkdl_comm.gang.listen import RAILS_KEY
from sparkdl_comm.gang.members import Member
from sparkdl_comm.topology import MAX_HOSTS, Topology


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


TOPOLOGY_KEY = "spark.sparkdl.comm.topology"


def arrange(members: Sequence[Member], text: str = "") -> tuple[Topology, list[int]]:
    """Return (topology, order); ``order[r]`` is the number of the member placed at the topology's rank ``r``.

    With several rails, the networks determine the places: on rail l, a network joins the members that differ only in
    digit l. With one rail, members of the same host get adjacent ranks if all hosts have equally many members.

    :param text: topology that the user configured; empty if none. The members must fit it.
    :raises ConfError: the members do not fit ``text`` or have different numbers of rails, several of them with several
        rails are on one host, or the networks form no BCube.
    """
    rails = len(members[0].rails)
    mismatched = [member.rank for member in members if len(member.rails) != rails]
    if mismatched:
        raise ConfError(
            f"ranks {mismatched} do not have the {rails} rails that rank 0 has. Set {RAILS_KEY} so that all"
            " ranks have equally many"
        )
    configured = parse_configured(text, len(members), rails) if text else None
    if rails > 1:
        _check_one_rank_per_host(members, text)
    networks = [[member.rails[rail].network for member in members] for rail in range(rails)]
    if rails > 1 and (configured is None or any(len(set(row)) > 1 for row in networks)):
        radices, order = _find_bcube(networks)
        if configured is None:
            return Topology.parse("bcube:" + "x".join(map(str, radices))), order
        if configured.radices != radices:
            raise ConfError(
                f"{TOPOLOGY_KEY}={text}, but the rails' networks form a BCube of {_join_radices(radices)} hosts"
            )
        return configured, order
    hosts = [member.rails[0].address for member in members]
    order = sorted(range(len(members)), key=lambda rank: (hosts.index(hosts[rank]), rank))
    counts = {hosts.count(host) for host in hosts}
    if configured is not None:
        return configured, order if counts == {configured.ranks_per_host} else list(range(len(members)))
    if len(set(hosts)) > 1 and len(counts) == 1 and counts != {1}:
        return Topology.parse(f"hosts:{len(set(hosts))}x{counts.pop()}"), order
    return Topology.parse(f"star:{len(members)}"), list(range(len(members)))


def list_shapes(world: int) -> list[str]:
    """Return the topologies with several rails that have ``world`` ranks, those with equal radices first."""
    found = []
    for k in range(2, math.floor(math.log2(min(world, MAX_HOSTS))) + 1):
        n = round(world ** (1 / k))
        if n >= 2 and n**k == world:
            found.append(f"bcube:{n},{k}")
    pairs = ((a, world // a) for a in range(2, math.isqrt(world) + 1) if world % a == 0 and a * a != world)
    return found + [f"bcube:{a}x{b}" for a, b in pairs]


def parse_configured(text: str, world: int, rails: int) -> Topology:
    """Return the topology that the user configured.

    :raises ConfError: it does not have ``world`` ranks with ``rails`` NICs each.
    """
    topology = Topology.parse(text)
    if topology.world != world:
        possible = ", ".join([f"star:{world}", *list_shapes(world)])
        raise ConfError(f"{TOPOLOGY_KEY}={topology} has {topology.world} ranks, not {world}; {world} fit {possible}")
    if topology.rails != rails:
        raise ConfError(
            f"{TOPOLOGY_KEY}={topology} has {topology.rails} rails, but {RAILS_KEY} names {rails}. Name one NIC per rail"
        )
    return topology


def _check_one_rank_per_host(members: Sequence[Member], text: str) -> None:
    """Check that members with several rails are on different hosts, as the hosts of a BCube have one rank each.

    Members on one loopback address pass: they emulate hosts.

    :param text: topology that the user configured; empty if none.
    :raises ConfError: several members are on one host.
    """
    ranks_by_host: dict[str, list[int]] = {}
    for member in members:
        ranks_by_host.setdefault(member.rails[0].address, []).append(member.rank)
    for host, ranks in ranks_by_host.items():
        if len(ranks) > 1 and not ipaddress.ip_address(host).is_loopback:
            setting = f"{TOPOLOGY_KEY}={text}" if text else f"{RAILS_KEY} names {len(members[0].rails)} NICs"
            raise ConfError(
                f"{setting}, but ranks {ranks} are on one host, {host}. A host of a BCube has one rank. Give each"
                " executor, and each task, all cores of its host (spark.executor.cores, spark.task.cpus)"
            )


def _find_bcube(networks: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], list[int]]:
    """Return the radices of the BCube in which rail r of member m is on ``networks[r][m]``, and the order of members.

    Two members have the same digit l if, and only if, they reach each other over the other rails. So the members that those
    rails connect have the same digit l.
    """
    world = len(networks[0])
    digits = []
    for level in range(len(networks)):
        groups = _group_connected([row for rail, row in enumerate(networks) if rail != level], world)
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
        possible = ", ".join(list_shapes(world)) or "none"
        cure = f"Set {TOPOLOGY_KEY} to a shape" if all(len(set(row)) == 1 for row in networks) else f"Set {RAILS_KEY}"
        raise ConfError(
            f"the networks of {world} ranks form no BCube ({seen}). {cure}. Shapes for {world} ranks: {possible}"
        )
    return radices, sorted(range(world), key=places.__getitem__)


def _group_connected(rows: Sequence[Sequence[str]], world: int) -> list[int]:
    """Return for each member the lowest-numbered member that it reaches over these rails."""
    group = list(range(world))
    for row, (one, other) in itertools.product(rows, itertools.combinations(range(world), 2)):
        if row[one] == row[other] and group[one] != group[other]:
            low, high = sorted((group[one], group[other]))
            group = [low if g == high else g for g in group]
    return group


def _join_radices(radices: Sequence[int]) -> str:
    return "x".join(map(str, radices))


#: Number of runs of each probe. The fastest run counts, since disturbances only make a probe slower.
_REPEATS = 3
#: Bytes of the largest probe, and seconds that a probe must take to stand out from noise.
_MAX_PROBE_BYTES, _MIN_PROBE_SECONDS = 4 << 20, 0.02

#: Costs by topology, device type, and :data:`CostKey`.
_cost_cache: dict[tuple[Any, ...], Cost] = {}

#: NIC addresses of each rank, and whether ranks of one host read each other's memory.
CostKey = tuple[tuple[tuple[str, ...], ...], bool]


def get_or_measure_cost(engine: Engine[Any], topology: Topology, hosts: CostKey, gather: Gather) -> Cost:
    """Return the costs that some rank knows from an earlier gang of the same hosts. Without them, measure the costs.

    All ranks must call it.
    """
    key = _key(engine, topology, hosts)
    mine = asdict(_cost_cache[key]) if key in _cost_cache else None
    messages = [json.loads(theirs) for theirs in gather(json.dumps(mine).encode())]
    first = next((theirs for theirs in messages if theirs is not None), None)
    if first is None:
        _cost_cache[key] = measure_cost(engine, topology, gather)
    else:
        _cost_cache[key] = Cost(**{**first, "betas": tuple(first["betas"])})
    return _cost_cache[key]


def remeasure_cost(engine: Engine[Any], topology: Topology, hosts: CostKey, gather: Gather) -> Cost:
    """Return :func:`measure_cost` and cache it for the next gang of the same hosts."""
    found = _cost_cache[_key(engine, topology, hosts)] = measure_cost(engine, topology, gather)
    return found


def _key(engine: Engine[Any], topology: Topology, hosts: CostKey) -> tuple[Any, ...]:
    return str(topology), engine.device.type, hosts


def measure_cost(engine: Engine[Any], topology: Topology, gather: Gather) -> Cost:
    """Measure the costs and return them: for each one, the worst that any rank found. All ranks return the same.

    alpha is the time of a message of 1 byte from host to host. beta is the time of one more byte in a large message,
    while every host sends to its next neighbor. local is the same inside a host, where every rank sends to the next.
    gamma is the time to add one byte. Measuring takes a fraction of a second per rail.
    """
    rails = [
        _measure_link(engine, functools.partial(make_probe, topology, rail), gather) for rail in range(topology.rails)
    ]
    local = LOCAL_BETA
    if topology.ranks_per_host > 1:
        _, local = _measure_link(engine, functools.partial(make_local_probe, topology), gather)
    alphas, betas = zip(*rails, strict=True)
    return Cost(betas, alpha=max(alphas), gamma=_max_over_ranks(gather, _time_addition()), local=local)


def _measure_link(engine: Engine[Any], make: Callable[[int], Plan], gather: Gather) -> tuple[float, float]:
    """Return alpha and beta of the messages of a probe. ``make`` returns the probe for a number of bytes."""
    alpha = _max_over_ranks(gather, min(_time_probe(engine, make(1), gather) for _ in range(_REPEATS)))
    nbytes, seconds = 64 << 10, 0.0
    while seconds < _MIN_PROBE_SECONDS and nbytes < _MAX_PROBE_BYTES:
        nbytes *= 4
        seconds_taken = min(_time_probe(engine, make(nbytes), gather) for _ in range(_REPEATS))
        seconds = _max_over_ranks(gather, seconds_taken)
    return alpha, max(seconds - alpha, alpha) / nbytes


def make_probe(topology: Topology, rail: int, count: int) -> Plan:
    """Return a plan in which the first rank of every host sends ``count`` elements to the next host on the rail.

    It receives as many from the previous host. Other ranks stay idle: ranks of a host share its NIC, and the cost model
    needs the cost of a message that has the NIC to itself.
    """

    def program(rank: int) -> Program:
        host = topology.host_of(rank)
        near = sorted([host.index, *topology.neighbor_hosts(host.index, rail)])
        if len(near) == 1 or rank != host.ranks[0]:
            return Program(())
        at = near.index(host.index)
        to, source = (topology.hosts[near[(at + way) % len(near)]].ranks[0] for way in (1, -1))
        steps = Step(StepKind.SEND, to, rail, 0, count), Step(StepKind.RECEIVE, source, rail, count, 2 * count)
        return Program(steps, scratch=count)

    return Plan(f"probe of rail {rail}", Collective("all_gather", topology, count), program)


def make_local_probe(topology: Topology, count: int) -> Plan:
    """Return a plan in which every rank sends ``count`` elements to the next rank of its host."""

    def program(rank: int) -> Program:
        ranks = topology.host_of(rank).ranks
        at = ranks.index(rank)
        to, source = (ranks[(at + way) % len(ranks)] for way in (1, -1))
        steps = Step(StepKind.SEND, to, 0, 0, count), Step(StepKind.RECEIVE, source, 0, count, 2 * count)
        return Program(steps, scratch=count)

    return Plan("probe inside hosts", Collective("all_gather", topology, count), program)


def _time_probe(engine: Engine[Any], probe: Plan, gather: Gather) -> float:
    prepared = engine.prepare(probe)
    vector = torch.zeros(probe.collective.count, dtype=torch.uint8, device=engine.device)
    gather(b"")  # a barrier: all ranks begin at the same time
    begin = time.perf_counter()
    engine.start(prepared, vector).wait()
    return time.perf_counter() - begin


def _time_addition() -> float:
    mine, theirs = np.zeros(1 << 18, np.float32), np.ones(1 << 18, np.float32)
    seconds_taken = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        np.add(mine, theirs, out=mine)
        seconds_taken.append(time.perf_counter() - begin)
    return min(seconds_taken) / mine.nbytes


def _max_over_ranks(gather: Gather, mine: float) -> float:
    values: list[float] = [json.loads(theirs) for theirs in gather(json.dumps(mine).encode())]
    return max(values)
