"""Double binary tree: each half of the vector goes through a tree of its own in blocks, and no host is an inner one of both.

Steps: n/b + 2 log2 N - 2, log2 rounded up, for a broadcast or a reduce at most, each of b bytes; an all-reduce is both.
Bytes on the wire: n over each link, in each direction, for a broadcast or a reduce at most; twice that for an all-reduce.

The N - 1 ranks beside the root have numbers from 1 on. In the first tree odd numbers are leaves, and above a number is the one
whose lowest bit is the next higher one, if there is one. The second tree is the first one's mirror image if N - 1 is even,
else the first one shifted by one place: odd numbers are inner ones but for one. Above both trees is the root.

1. broadcast: the root sends half of the blocks into each tree. A rank gets n/2 bytes from its parent in each, and as an inner
   one sends n/2 to each of two children. Edges are of odd or of even steps: those to a rank differ, and those from it;
2. reduce: the same backwards, and what arrives is added;
3. all-reduce: reduce to rank 0, then broadcast. Both keep an inner rank's link busy in both directions, so there is no time to
   be won by doing them at once.

Time of a broadcast n beta + 2 log2 N alpha + sqrt(8 log2 N n alpha beta) with blocks of sqrt(n alpha / (2 log2 N beta)) bytes,
where one tree takes 2 n beta; of an all-reduce 2 n beta + 4 log2 N alpha + 2 sqrt(8 log2 N n alpha beta) + n gamma.

Of hosts with several ranks one on each is in the trees; the others are a chain below it, so that a NIC carries the same.

Blocks of other hosts are received in the order of their steps. Where a rank took whatever comes first, those that are early
would make others late for good: in the cost model a reduce took up to 1.3 times as long.

Peter Sanders, Jochen Speck, Jesper Larsson Träff: "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
2009; they colour edges without looking at the whole. NCCL has such trees: TreeAR in Shaohuai Shi and others (see
``torus2d.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from sparkdl_comm.collectives.algorithms.base import Algorithm, one_rail, register
from sparkdl_comm.collectives.plan import Collective, Kind, Plan, Program, Step, cut
from sparkdl_comm.topology import Topology

#: How many of the receives before it a send may overtake. With none, a rank would wait for the last byte of one message before
#: it begins another; with any number, those that mostly send would fill others' ports, as in ``lp.py``.
_LEAD = 2


class Edge(NamedTuple):
    """Of tree 0 or 1, between two ranks: in a broadcast blocks pass it from ``parent`` to ``child``."""

    tree: int
    parent: int
    child: int


def plan(collective: Collective) -> Plan:
    first = first_steps(collective.topology, collective.root if collective.operation != "all_reduce" else 0)
    last = max(first.values(), default=0)
    blocks = [_blocks(collective, tree) for tree in range(2)]
    edges_of = defaultdict(list)
    for edge in first:
        edges_of[edge.parent].append(edge)
        edges_of[edge.child].append(edge)

    def half(rank: int, is_up: bool) -> list[Step]:
        """The rank's steps of a reduce (``is_up``) or of a broadcast."""
        timed = []
        for edge in edges_of[rank]:
            kind, peer = _role(rank, edge, is_up)
            begin = last - first[edge] if is_up else first[edge]
            for number, bounds in enumerate(blocks[edge.tree]):
                timed.append((begin + 2 * number, kind is not Kind.SEND, edge, Step(kind, peer, 0, *bounds)))
        return [step for *_, step in sorted(timed)]

    def away(rank: int) -> Iterator[int]:
        """The rank's neighbours in the trees that are on other hosts."""
        host = collective.topology.host_of(rank)
        for edge in edges_of[rank]:
            yield from {edge.parent, edge.child}.difference(host.ranks)

    def program(rank: int) -> Program:
        steps = half(rank, is_up=True) if collective.operation != "broadcast" else []
        if collective.operation != "reduce":
            steps += half(rank, is_up=False)
        return Program(tuple(steps), lead=_LEAD, in_turn=frozenset(away(rank)))

    return Plan("tree", collective, program)


def first_steps(topology: Topology, root: int) -> dict[Edge, int]:
    """For each edge, the step of a broadcast in which the first block passes it; the next ones pass every second step."""
    edges = [edge for tree in range(2) for edge in _edges(topology, root, tree)]
    parities = _parities(topology, edges)
    arrival = {(tree, root): tree - 1 for tree in range(2)}
    found = {}
    for edge in edges:
        step = arrival[edge.tree, edge.parent] + 1
        if edge in parities:
            step += (step + parities[edge]) % 2
        found[edge] = arrival[edge.tree, edge.child] = step
    return found


def _edges(topology: Topology, root: int, tree: int) -> list[Edge]:
    """Those of a tree, each after the one above it."""
    at = topology.host_of(root).index
    others = [*topology.hosts[at + 1 :], *topology.hosts[:at]]
    heads = [host.ranks[0] for host in others]
    if tree == 1:
        heads = heads[::-1] if len(heads) % 2 == 0 else heads[-1:] + heads[:-1]
    numbered = [root, *heads]
    downwards = sorted(range(1, len(numbered)), key=lambda number: -(number & -number))
    edges = [Edge(tree, numbered[above(number, len(heads))], numbered[number]) for number in downwards]
    for head in numbered:
        chain = [head, *topology.local_ranks(head)]
        edges += [Edge(tree, *pair) for pair in pairwise(chain)]
    return edges


def above(number: int, count: int) -> int:
    """The number above ``number`` in a tree of the numbers 1 to ``count``, whose left parts have smaller ones; 0 above all."""
    lowest = number & -number
    rest = number ^ lowest
    up = rest | lowest << 1
    return up if up <= count else rest


def _parities(topology: Topology, edges: Sequence[Edge]) -> dict[Edge, int]:
    """0 or 1 for each edge between hosts, such that a rank sends over one of either at most, and gets over one of either.

    Two edges at most must differ at a rank that sends, or at one that gets; so all that must differ makes paths, and cycles
    of even length.
    """
    between = [edge for edge in edges if topology.host_of(edge.parent) is not topology.host_of(edge.child)]
    meeting = defaultdict(list)
    for edge in between:
        meeting["from", edge.parent].append(edge)
        meeting["to", edge.child].append(edge)
    found: dict[Edge, int] = {}
    for begin in between:
        todo = [(begin, 0)]
        while todo:
            edge, parity = todo.pop()
            if edge not in found:
                found[edge] = parity
                todo += [(other, 1 - parity) for other in meeting["from", edge.parent] + meeting["to", edge.child]]
    return found


def _role(rank: int, edge: Edge, is_up: bool) -> tuple[Kind, int]:
    """What the rank does when a block passes the edge, of which it is an end; the other one."""
    if (rank == edge.child) == is_up:
        return Kind.SEND, edge.parent if is_up else edge.child
    return (Kind.COMBINE, edge.child) if is_up else (Kind.RECEIVE, edge.parent)


def _blocks(collective: Collective, tree: int) -> list[tuple[int, int]]:
    """The ranges of the tree's half of the vector."""
    start, stop = (cut(0, collective.count, 2, index) for index in (tree, tree + 1))
    return [(begin, min(begin + collective.block, stop)) for begin in range(start, stop, collective.block)]


def _depth(topology: Topology) -> float:
    # All messages of a rank take n/b steps; before those of the last one there are about as many as the first block takes.
    return max(first_steps(topology, 0).values(), default=0)


register(Algorithm("tree", plan, ("all_reduce", "broadcast", "reduce"), one_rail, _depth))
