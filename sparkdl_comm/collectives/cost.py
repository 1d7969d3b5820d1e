"""How long a plan takes, by the alpha-beta-gamma model. Pure.

A message of n bytes occupies the sender's NIC and the receiver's for alpha + beta n seconds; combining it takes the receiver
gamma n more, while the next one arrives. NICs send and receive at once, but one message at a time each way. The ranks of a
host share its NICs: whichever message can go first goes first. Between ranks of one host messages take no NIC; a rank sends
one at a time and receives one at a time. Switches and trunks are taken to be fast enough.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparkdl_comm.collectives.plan import Kind
from sparkdl_comm.collectives.transfers import Transfer
from sparkdl_comm.errors import ConfError, PlanError
from sparkdl_comm.topology import Topology

#: What a message costs beside its bytes, what adding a byte costs, and what a byte between two processes of one host
#: costs, if nobody measured it: seconds, of the order that TCP between Python processes has.
ALPHA, GAMMA, LOCAL_BETA = 5e-5, 2e-10, 1e-9


@dataclass(frozen=True)
class Cost:
    """``alpha``: seconds per message. ``betas``: seconds per byte of each rail; ``local``: between ranks of one host.
    ``gamma``: seconds per byte combined."""

    betas: tuple[float, ...]
    alpha: float = ALPHA
    gamma: float = GAMMA
    local: float = LOCAL_BETA

    @classmethod
    def of(cls, topology: Topology, alpha: float = ALPHA, gamma: float = GAMMA) -> Cost:
        """That of the topology's rates. ConfError if it has none."""
        if not topology.rates:
            raise ConfError(f"{topology} has no rates: give one, such as {topology},200mbit")
        return cls(tuple(8 / rate for rate in topology.rates), alpha, gamma)

    def best_block(self, nbytes: int, depth: float) -> int:
        """Bytes per block, sqrt(n alpha / (depth beta)): what filling the pipe costs, depth b beta, is then what the n/b
        messages cost. ``depth``: see ``Algorithm``; beta is the slowest rail's."""
        if not depth:
            return max(1, nbytes)
        return max(1, round(math.sqrt(nbytes * self.alpha / (depth * max(self.betas)))))


def critical_path(done: Sequence[Transfer], topology: Topology, itemsize: int, cost: Cost) -> float:
    """Seconds until the last of a plan's transfers is complete, if every rank sends over a NIC in the order of its program.

    :param done: :func:`~sparkdl_comm.collectives.transfers.transfers` of the plan.
    :param itemsize: bytes per element.
    :raises PlanError: in that order ranks would wait for each other.
    """
    links = [_link(transfer, topology) for transfer in done]
    ports = [_ports(transfer, link, topology) for transfer, link in zip(done, links, strict=True)]
    followers: list[list[int]] = [[] for _ in done]
    left = [len(transfer.after) for transfer in done]
    for number, transfer in enumerate(done):
        for other in transfer.after:
            followers[other].append(number)
    behind: dict[int, int] = {}  # a transfer -> the next one that the same rank sends over the same NIC
    latest: dict[tuple[int, int], int] = {}
    for number in sorted(range(len(done)), key=lambda number: done[number].turn):
        sender = done[number].source, links[number]
        if sender in latest:
            behind[latest[sender]] = number
            left[number] += 1
        latest[sender] = number

    possible = [0.0] * len(done)
    busy: dict[Port, float] = {}  # until when
    queue = [(0.0, number) for number, count in enumerate(left) if not count]
    last, count = 0.0, 0
    while queue:
        begin, number = heapq.heappop(queue)
        transfer, link = done[number], links[number]
        idle = max(busy.get(port, 0.0) for port in ports[number])
        if idle > begin:
            heapq.heappush(queue, (idle, number))
            continue
        nbytes = transfer.elements * itemsize
        arrived = begin + cost.alpha + nbytes * (cost.local if link == _LOCAL else cost.betas[link])
        complete = arrived + (nbytes * cost.gamma if transfer.receive.kind is Kind.COMBINE else 0.0)
        busy |= dict.fromkeys(ports[number], arrived)
        last, count = max(last, complete), count + 1
        freed = [(follower, complete) for follower in followers[number]]
        freed += [(behind[number], arrived)] if number in behind else []
        for follower, when in freed:
            possible[follower] = max(possible[follower], when)
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(queue, (possible[follower], follower))
    if count < len(done):
        raise PlanError(
            f"{len(done) - count} of {len(done)} transfers wait for each other if ranks send in program order"
        )
    return last


_LOCAL = -1

#: One direction of a NIC, (host, rail, whether it sends), or (rank, _LOCAL, whether it sends).
Port = tuple[int, int, bool]


def _link(transfer: Transfer, topology: Topology) -> int:
    local = topology.host_of(transfer.source) is topology.host_of(transfer.target)
    return _LOCAL if local else transfer.rail


def _ports(transfer: Transfer, link: int, topology: Topology) -> tuple[Port, Port]:
    """What a transfer occupies."""
    ends = transfer.source, transfer.target
    source, target = ends if link == _LOCAL else (topology.host_of(rank).index for rank in ends)
    return (source, link, True), (target, link, False)


def _log(world: int) -> int:
    return math.ceil(math.log2(world))


def _be_broadcast(p: int, n: float, b: float, alpha: float, beta: float, gamma: float) -> float:
    return (_log(p) + p - 1) * alpha + 2 * (p - 1) / p * n * beta


def _be_reduce(p: int, n: float, b: float, alpha: float, beta: float, gamma: float) -> float:
    return 2 * _log(p) * alpha + 2 * (p - 1) / p * n * beta + (p - 1) / p * n * gamma


def _mst_broadcast(p: int, n: float, b: float, alpha: float, beta: float, gamma: float) -> float:
    return _log(p) * (alpha + n * beta)


def _mst_reduce(p: int, n: float, b: float, alpha: float, beta: float, gamma: float) -> float:
    return _log(p) * (alpha + n * beta + n * gamma)


def _mst_all_reduce(p: int, n: float, b: float, alpha: float, beta: float, gamma: float) -> float:
    return _log(p) * (2 * alpha + 2 * n * beta + n * gamma)


def _lp_broadcast(p: int, n: float, b: float, alpha: float, beta: float, gamma: float) -> float:
    return (p - 1 + n / b) * alpha + (b * (p - 1) + n) * beta


def _lp_reduce(p: int, n: float, b: float, alpha: float, beta: float, gamma: float) -> float:
    return (p - 1 + n / b) * alpha + (b * (p - 1) + n) * (beta + gamma)


def _lp_all_reduce(p: int, n: float, b: float, alpha: float, beta: float, gamma: float) -> float:
    return 2 * (p - 1 + n / b) * alpha + (b * (p - 1) + n) * (2 * beta + gamma)


#: Table 1 of the linear-pipeline paper (see ``algorithms/lp.py``): (algorithm, operation) -> seconds of p ranks for n bytes in
#: blocks of b bytes, over one link per rank. The paper's log is of a power of two; here it is rounded up.
TABLE_1: dict[tuple[str, str], Callable[[int, float, float, float, float, float], float]] = {
    ("be", "broadcast"): _be_broadcast,
    ("be", "reduce"): _be_reduce,
    ("be", "all_reduce"): _be_reduce,
    ("mst", "broadcast"): _mst_broadcast,
    ("mst", "reduce"): _mst_reduce,
    ("mst", "all_reduce"): _mst_all_reduce,
    ("lp", "broadcast"): _lp_broadcast,
    ("lp", "reduce"): _lp_reduce,
    ("lp", "all_reduce"): _lp_all_reduce,
}
