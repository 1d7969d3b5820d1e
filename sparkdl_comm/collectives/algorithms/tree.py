"""Double binary tree: each half of the vector has its own tree, in blocks. No host is an inner node of both trees.

Steps: at most n/b + 2 log2 N - 2 of b bytes each for a broadcast or a reduce, log2 rounded up; an all-reduce is both.
Bytes on the wire: at most n over each link, in each direction, for a broadcast or a reduce; twice that for an
all-reduce.

The N - 1 ranks other than the root are numbered from 1. In the first tree, odd numbers are leaves. The parent of a
number has the next higher lowest bit, if such a number exists. If N - 1 is even, the second tree is the mirror image of
the first one. Otherwise it is the first tree shifted by one place: all odd numbers except one are inner nodes. The root
is above both trees.

1. broadcast: the root sends half of the blocks into each tree. A rank gets n/2 bytes from its parent in each tree. As
   an inner node, it also sends n/2 bytes to each of two children. Each edge is used in odd steps only or in even steps
   only. The two edges into a rank differ in this, and so do the two edges out of it.
2. reduce: the same steps backwards, adding the blocks that arrive.
3. all-reduce: reduce to rank 0, then broadcast. Both keep an inner rank's link busy in both directions, so running them
   at the same time would save nothing.

A broadcast takes n beta + 2 log2 N alpha + sqrt(8 log2 N n alpha beta) with blocks of sqrt(n alpha / (2 log2 N beta))
bytes. One tree would take 2 n beta. An all-reduce takes 2 n beta + 4 log2 N alpha + 2 sqrt(8 log2 N n alpha beta) + n
gamma.

If a host has several ranks, one of them is in the trees. The others are a chain below it, so that a NIC carries the
same.

A rank receives the blocks of other hosts in the order of their steps. If it received them as they arrive, early blocks
would delay the others for good: in the cost model a reduce took up to 1.3 times as long.

Peter Sanders, Jochen Speck, Jesper Larsson Träff: "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", 2009; they color edges without looking at the whole tree. NCCL has such trees: TreeAR in Shaohuai Shi and others
(see ``torus2d.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from sparkdl_comm.collectives.plan import (
    Algorithm,
    Collective,
    Plan,
    Program,
    Step,
    StepKind,
    needs_one_rail,
    part_start,
)
from sparkdl_comm.topology import Topology

#: Number of preceding receives that a send may overtake. With 0, a rank would wait for the last byte of one message before
#: it begins another. Without a limit, ranks that mostly send would fill the ports of others, as in ``lp.py``.
_MAX_OVERTAKEN = 2


class Edge(NamedTuple):
    """Edge of tree 0 or 1: in a broadcast, blocks go from rank ``parent`` to rank ``child``."""

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

    def half_steps(rank: int, is_up: bool) -> list[Step]:
        """Return the rank's steps of a reduce (``is_up``) or of a broadcast."""
        timed = []
        for edge in edges_of[rank]:
            kind, peer = _role(rank, edge, is_up)
            begin = last - first[edge] if is_up else first[edge]
            for number, bounds in enumerate(blocks[edge.tree]):
                timed.append((begin + 2 * number, kind is not StepKind.SEND, edge, Step(kind, peer, 0, *bounds)))
        return [step for *_, step in sorted(timed)]

    def remote_neighbors(rank: int) -> Iterator[int]:
        """Yield the rank's neighbors in the trees that are on other hosts."""
        host = collective.topology.host_of(rank)
        for edge in edges_of[rank]:
            yield from {edge.parent, edge.child}.difference(host.ranks)

    def program(rank: int) -> Program:
        steps = half_steps(rank, is_up=True) if collective.operation != "broadcast" else []
        if collective.operation != "reduce":
            steps += half_steps(rank, is_up=False)
        return Program(tuple(steps), max_overtaken=_MAX_OVERTAKEN, ordered_peers=frozenset(remote_neighbors(rank)))

    return Plan("tree", collective, program)


def first_steps(topology: Topology, root: int) -> dict[Edge, int]:
    """Return for each edge the step of a broadcast in which its first block passes. The next blocks pass every second step."""
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
    """Return the edges of a tree. Each edge follows the one above it."""
    at = topology.host_of(root).index
    others = [*topology.hosts[at + 1 :], *topology.hosts[:at]]
    heads = [host.ranks[0] for host in others]
    if tree == 1:
        heads = heads[::-1] if len(heads) % 2 == 0 else heads[-1:] + heads[:-1]
    numbered = [root, *heads]
    downwards = sorted(range(1, len(numbered)), key=lambda number: -(number & -number))
    edges = [Edge(tree, numbered[parent_of(number, len(heads))], numbered[number]) for number in downwards]
    for head in numbered:
        chain = [head, *topology.local_ranks(head)]
        edges += [Edge(tree, *pair) for pair in pairwise(chain)]
    return edges


def parent_of(number: int, count: int) -> int:
    """Return the parent of ``number`` in a tree of the numbers 1 to ``count``; 0 for the top of the tree.

    Numbers in a left subtree are smaller than its parent.
    """
    lowest = number & -number
    rest = number ^ lowest
    up = rest | lowest << 1
    return up if up <= count else rest


def _parities(topology: Topology, edges: Sequence[Edge]) -> dict[Edge, int]:
    """Return a parity, 0 or 1, for each edge between hosts.

    A rank has at most one outgoing edge of each parity, and at most one incoming edge of each. These constraints join
    at most two edges at their sender, and at most two at their receiver. So they form paths and cycles of even length.
    """
    between = [edge for edge in edges if topology.host_of(edge.parent) is not topology.host_of(edge.child)]
    adjacent_edges = defaultdict(list)
    for edge in between:
        adjacent_edges["from", edge.parent].append(edge)
        adjacent_edges["to", edge.child].append(edge)
    found: dict[Edge, int] = {}
    for begin in between:
        stack = [(begin, 0)]
        while stack:
            edge, parity = stack.pop()
            if edge not in found:
                found[edge] = parity
                stack += [
                    (other, 1 - parity)
                    for other in adjacent_edges["from", edge.parent] + adjacent_edges["to", edge.child]
                ]
    return found


def _role(rank: int, edge: Edge, is_up: bool) -> tuple[StepKind, int]:
    """Return (kind, peer): the rank's step when a block passes the edge, and the rank at the other end."""
    if (rank == edge.child) == is_up:
        return StepKind.SEND, edge.parent if is_up else edge.child
    return (StepKind.COMBINE, edge.child) if is_up else (StepKind.RECEIVE, edge.parent)


def _blocks(collective: Collective, tree: int) -> list[tuple[int, int]]:
    """Return the ranges of the blocks in the tree's half of the vector."""
    start, stop = (part_start(0, collective.count, 2, index) for index in (tree, tree + 1))
    return [(begin, min(begin + collective.block, stop)) for begin in range(start, stop, collective.block)]


def _depth(topology: Topology) -> float:
    # The messages of a rank take n/b steps. The last rank begins about as late as the first block reaches it.
    return max(first_steps(topology, 0).values(), default=0)


ALGORITHM = Algorithm("tree", plan, ("all_reduce", "broadcast", "reduce"), needs_one_rail, _depth)
