"""BML: all rails of every host at once, on BCube(m, k), which has m hosts per switch and k rails.

Steps: 2k for an all-reduce, k for a reduce-scatter or an all-gather, each with m - 1 neighbors on each rail.
Bytes on the wire: 2(N-1)/(kN) n over each rail and direction for an all-reduce: 1/k of the least that is possible over
one link.

The vector is cut into one share per thread (there are k), and each share into N pieces, one per rank. Thread t goes
through the levels t, t+1, …, modulo k. So no two threads use a rail in the same step:

1. aggregation, step w: over level (t+w) mod k, every rank sends each neighbor N/m^(w+1) pieces, namely the pieces whose
   digits t … t+w are the neighbor's. It adds the pieces that arrive to its own.
2. broadcast: the same steps backwards.

Section 3.3 of Songtao Wang, Dan Li, Yang Cheng, Jinkun Geng and others: "BML: A High-performance, Low-cost Gradient
Synchronization Algorithm for DML Training", 2018.

Beyond the paper: levels may have different radices or rates. Then the threads' shares let the busiest rail finish as
early as possible. The vector is cut into rounds that follow each other through the steps, so that rails do not wait.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.collectives.algorithms.levels import Exchange, Level, make_levels
from sparkdl_comm.collectives.plan import (
    SCATTERED,
    Algorithm,
    Collective,
    Plan,
    Program,
    Step,
    drop_empty_steps,
    pipeline_rounds,
)
from sparkdl_comm.topology import Topology

#: Shares are multiples of 1 / _GRAIN. So ranks agree on them even if their floating point differs in the last bit.
_GRAIN = 65536


def plan(collective: Collective) -> Plan:
    topology = collective.topology
    levels = make_levels(topology.radices, range(topology.rails))
    shares = thread_shares(topology)
    rounds = [(0, collective.count)] if is_even(topology) else collective.rounds()

    def threads(rank: int, begin: int, end: int) -> list[Exchange]:
        """Return a round's threads, each with its share of the round's range."""
        bounds = [begin + int(sum(shares[:t], Fraction()) * (end - begin)) for t in range(len(shares) + 1)]
        return [Exchange(rank, levels[t:] + levels[:t], bounds[t], bounds[t + 1]) for t in range(len(shares))]

    def stages(rank: int, begin: int, end: int) -> list[list[Step]]:
        """Return a round's stages. In each stage, every thread is at another level."""
        of_threads = []
        for exchange in threads(rank, begin, end):
            aggregation = exchange.aggregate() if collective.operation != "all_gather" else []
            broadcasting = exchange.broadcast() if collective.operation != "reduce_scatter" else []
            of_threads.append([*aggregation, *broadcasting])
        return [[step for steps in stage for step in steps] for stage in zip(*of_threads, strict=True)]

    def program(rank: int) -> Program:
        return Program(drop_empty_steps(pipeline_rounds([stages(rank, *bounds) for bounds in rounds])))

    def owned_ranges(rank: int) -> list[tuple[int, int]]:
        return [exchange.own for bounds in rounds for exchange in threads(rank, *bounds)]

    return Plan("bml", collective, program, owned_ranges)


def is_even(topology: Topology) -> bool:
    """Return whether all levels have the same radix and rate, as in the paper."""
    return len(set(topology.radices)) == 1 and len(set(topology.rates)) <= 1


def thread_shares(topology: Topology) -> list[Fraction]:
    """Return each thread's share of the vector. The shares add up to 1.

    They minimize the time T such that no rail l carries more than rate_l T. This is a linear program of k variables, one for
    each rail. At its solution, as many rails are busy until T as threads have a share. Few points have this property, so
    all of them are tried.
    """
    k = topology.rails
    if is_even(topology):
        return [Fraction(1, k)] * k
    rates = np.array(topology.rates or (1,) * k, float)
    loads = _loads(make_levels(topology.radices, range(k))) / rates[:, None]
    best_time = np.inf
    best_shares: NDArray[np.float64] = np.zeros(k)
    for used in range(1, k + 1):
        for threads in combinations(range(k), used):
            for rails in combinations(range(k), used):
                shares = _balance_shares(loads, threads, rails)
                if shares is not None and (loads @ shares).max() < best_time - 1e-9 / rates.max():
                    best_time, best_shares = (loads @ shares).max(), shares
    grains = [round(share * _GRAIN) for share in best_shares]
    grains[int(best_shares.argmax())] += _GRAIN - sum(grains)
    return [Fraction(grain, _GRAIN) for grain in grains]


def _loads(levels: list[Level]) -> NDArray[np.float64]:
    """Return ``[rail, thread]``: the fraction of a thread's share that a rank sends over the rail while aggregating."""
    k = len(levels)
    loads = np.zeros((k, k))
    for thread in range(k):
        remaining = 1.0
        for level in levels[thread:] + levels[:thread]:
            loads[level.rail, thread] += remaining * (level.radix - 1) / level.radix
            remaining /= level.radix
    return loads


def _balance_shares(
    loads: NDArray[np.float64], threads: tuple[int, ...], rails: tuple[int, ...]
) -> NDArray[np.float64] | None:
    """Return shares of these threads with which these rails take equally long; None if that needs a negative share."""
    used = len(threads)
    system = np.ones((used + 1, used + 1))
    system[:used, :used] = loads[np.ix_(rails, threads)]
    system[:used, used] = -1.0
    system[used, used] = 0.0
    try:
        solution = np.linalg.solve(system, [0.0] * used + [1.0])[:used]
    except np.linalg.LinAlgError:
        return None
    shares = np.zeros(loads.shape[1])
    shares[list(threads)] = solution
    return shares if solution.min() >= 0 else None


def _needs_one_rank_per_host(topology: Topology) -> str:
    return (
        ""
        if topology.ranks_per_host == 1
        else f"it takes one rank per host, but {topology.text} has {topology.ranks_per_host}"
    )


def _depth(topology: Topology) -> float:
    # Filling the pipeline takes one block time. Per block, each thread sends each neighbor on a rail two messages.
    messages = 2 * topology.rails * (max(topology.radices) - 1)
    return 0.0 if is_even(topology) else 1 / messages


ALGORITHM = Algorithm("bml", plan, SCATTERED, _needs_one_rank_per_host, _depth)
