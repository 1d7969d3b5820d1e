"""What a message and a byte cost here, measured by all ranks together before the first collective.

Spark uses Python workers again, so what was measured between some hosts is kept in the process, and taken by the next gang of
the same hosts in which a rank has it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.engine.base import Engine
from sparkdl_comm.collectives.plan import Collective, Kind, Plan, Program, Step
from sparkdl_comm.gang.members import Member
from sparkdl_comm.topology import Topology

#: Each probe is repeated so often; the fastest counts, since whatever disturbs makes it slower.
_REPEATS = 3
#: The largest probe's bytes, and how long one must take to tell: the rest is noise.
_MOST_BYTES, _LONG_ENOUGH = 4 << 20, 0.02

#: Gives what each rank said, by rank.
Gather = Callable[[bytes], list[bytes]]


#: By topology, kind of device, and the addresses of each rank.
_known: dict[tuple[Any, ...], Cost] = {}


def known_or_measured_cost(engine: Engine[Any], topology: Topology, members: Sequence[Member], gather: Gather) -> Cost:
    """As :func:`measured_cost`, but measured only if no rank knows it from an earlier gang of the same hosts."""
    key = _key(engine, topology, members)
    mine = asdict(_known[key]) if key in _known else None
    told = [json.loads(theirs) for theirs in gather(json.dumps(mine).encode())]
    first = next((theirs for theirs in told if theirs is not None), None)
    if first is None:
        _known[key] = measured_cost(engine, topology, gather)
    else:
        _known[key] = Cost(**{**first, "betas": tuple(first["betas"])})
    return _known[key]


def cost_measured_again(engine: Engine[Any], topology: Topology, members: Sequence[Member], gather: Gather) -> Cost:
    """As :func:`measured_cost`; the next gang of the same hosts takes it."""
    found = _known[_key(engine, topology, members)] = measured_cost(engine, topology, gather)
    return found


def _key(engine: Engine[Any], topology: Topology, members: Sequence[Member]) -> tuple[Any, ...]:
    return str(topology), engine.device.type, tuple(tuple(rail.address for rail in m.rails) for m in members)


def measured_cost(engine: Engine[Any], topology: Topology, gather: Gather) -> Cost:
    """The same on all ranks: of each figure the worst that any of them found. Takes a fraction of a second per rail.

    alpha is what an empty message takes from host to host, beta what a byte more of a large one does while every host sends to
    its next neighbour, gamma what adding a byte does.
    """
    alphas, betas = [], []
    for rail in range(topology.rails):
        alpha = _worst(gather, min(_exchange(engine, topology, rail, 1, gather) for _ in range(_REPEATS)))
        nbytes, seconds = 64 << 10, 0.0
        while seconds < _LONG_ENOUGH and nbytes < _MOST_BYTES:
            nbytes *= 4
            taken = min(_exchange(engine, topology, rail, nbytes, gather) for _ in range(_REPEATS))
            seconds = _worst(gather, taken)
        alphas.append(alpha)
        betas.append(max(seconds - alpha, alpha) / nbytes)
    return Cost(tuple(betas), alpha=max(alphas), gamma=_worst(gather, _adding()))


def probe(topology: Topology, rail: int, count: int) -> Plan:
    """The first rank of every host sends ``count`` elements to that of the next host on the rail, and gets as many from the
    one before. Ranks of a host share its NIC, and the cost model wants what a message costs that has it alone."""

    def program(rank: int) -> Program:
        host = topology.host_of(rank)
        near = sorted([host.index, *topology.neighbour_hosts(host.index, rail)])
        if len(near) == 1 or rank != host.ranks[0]:
            return Program(())
        at = near.index(host.index)
        to, source = (topology.hosts[near[(at + way) % len(near)]].ranks[0] for way in (1, -1))
        steps = Step(Kind.SEND, to, rail, 0, count), Step(Kind.RECEIVE, source, rail, count, 2 * count)
        return Program(steps, scratch=count)

    return Plan(f"probe of rail {rail}", Collective("all_gather", topology, count), program)


def _exchange(engine: Engine[Any], topology: Topology, rail: int, nbytes: int, gather: Gather) -> float:
    prepared = engine.prepare(probe(topology, rail, nbytes))
    vector = torch.zeros(nbytes, dtype=torch.uint8, device=engine.device)
    gather(b"")  # so that all begin at once
    begin = time.perf_counter()
    engine.start(prepared, vector).wait()
    return time.perf_counter() - begin


def _adding() -> float:
    mine, theirs = np.zeros(1 << 18, np.float32), np.ones(1 << 18, np.float32)
    taken = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        np.add(mine, theirs, out=mine)
        taken.append(time.perf_counter() - begin)
    return min(taken) / mine.nbytes


def _worst(gather: Gather, mine: float) -> float:
    return max(json.loads(theirs) for theirs in gather(json.dumps(mine).encode()))
