"""Measurement of the cost of messages and bytes between the ranks, before the first collective.

Spark reuses Python workers. So each process caches the costs that it measured between a set of hosts. The next gang of
the same hosts takes them if one of its ranks has them.
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
from sparkdl_comm.collectives.plan import Collective, Plan, Program, Step, StepKind
from sparkdl_comm.gang.members import Member
from sparkdl_comm.topology import Topology

#: Number of runs of each probe. The fastest run counts, since disturbances only make a probe slower.
_REPEATS = 3
#: Bytes of the largest probe, and seconds that a probe must take to stand out from noise.
_MAX_PROBE_BYTES, _MIN_PROBE_SECONDS = 4 << 20, 0.02

#: Function that sends bytes to all ranks and returns the bytes of each rank, by rank.
Gather = Callable[[bytes], list[bytes]]


#: Costs by topology, device type, and the NIC addresses of each rank.
_cost_cache: dict[tuple[Any, ...], Cost] = {}


def get_or_measure_cost(engine: Engine[Any], topology: Topology, members: Sequence[Member], gather: Gather) -> Cost:
    """Return the costs that some rank knows from an earlier gang of the same hosts. Without them, measure the costs.

    All ranks must call it.
    """
    key = _key(engine, topology, members)
    mine = asdict(_cost_cache[key]) if key in _cost_cache else None
    messages = [json.loads(theirs) for theirs in gather(json.dumps(mine).encode())]
    first = next((theirs for theirs in messages if theirs is not None), None)
    if first is None:
        _cost_cache[key] = measure_cost(engine, topology, gather)
    else:
        _cost_cache[key] = Cost(**{**first, "betas": tuple(first["betas"])})
    return _cost_cache[key]


def remeasure_cost(engine: Engine[Any], topology: Topology, members: Sequence[Member], gather: Gather) -> Cost:
    """Return :func:`measure_cost` and cache it for the next gang of the same hosts."""
    found = _cost_cache[_key(engine, topology, members)] = measure_cost(engine, topology, gather)
    return found


def _key(engine: Engine[Any], topology: Topology, members: Sequence[Member]) -> tuple[Any, ...]:
    return str(topology), engine.device.type, tuple(tuple(rail.address for rail in m.rails) for m in members)


def measure_cost(engine: Engine[Any], topology: Topology, gather: Gather) -> Cost:
    """Measure the costs and return them: for each one, the worst that any rank found. All ranks return the same.

    alpha is the time of a message of 1 byte from host to host. beta is the time of one more byte in a large message,
    while every host sends to its next neighbor. gamma is the time to add one byte. Measuring takes a fraction of a
    second per rail.
    """
    alphas, betas = [], []
    for rail in range(topology.rails):
        alpha = _max_over_ranks(gather, min(_time_exchange(engine, topology, rail, 1, gather) for _ in range(_REPEATS)))
        nbytes, seconds = 64 << 10, 0.0
        while seconds < _MIN_PROBE_SECONDS and nbytes < _MAX_PROBE_BYTES:
            nbytes *= 4
            seconds_taken = min(_time_exchange(engine, topology, rail, nbytes, gather) for _ in range(_REPEATS))
            seconds = _max_over_ranks(gather, seconds_taken)
        alphas.append(alpha)
        betas.append(max(seconds - alpha, alpha) / nbytes)
    return Cost(tuple(betas), alpha=max(alphas), gamma=_max_over_ranks(gather, _time_addition()))


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


def _time_exchange(engine: Engine[Any], topology: Topology, rail: int, nbytes: int, gather: Gather) -> float:
    prepared = engine.prepare(make_probe(topology, rail, nbytes))
    vector = torch.zeros(nbytes, dtype=torch.uint8, device=engine.device)
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
