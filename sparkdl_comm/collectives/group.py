"""A rank's collectives: plans made for what is asked, kept for the next time, and run by an engine."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from sparkdl_comm.collectives.algorithms import ALGORITHMS, make_plan
from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.discover import arrange
from sparkdl_comm.collectives.engine.base import Engine, Prepared, Work
from sparkdl_comm.collectives.engine.choose import make_engine
from sparkdl_comm.collectives.measure import cost_measured_again, known_or_measured_cost
from sparkdl_comm.collectives.parts import Parts
from sparkdl_comm.collectives.plan import Kind, Operation, Plan
from sparkdl_comm.collectives.rank_group import RankGroup
from sparkdl_comm.collectives.select import collective_for, fitting, ranking
from sparkdl_comm.collectives.sub_topology import SubTopology, sub_topology
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError, GangError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.topology import Topology

AUTO = "auto"
CPU = torch.device("cpu")

_log = logging.getLogger(__name__)


class Finishing:
    """A collective that was begun, and what is left to do when it is complete."""

    def __init__(self, work: Work, finish: Callable[[], None]) -> None:
        self._work, self._finish = work, finish

    def wait(self, timeout: float | None = None) -> None:
        """As :meth:`~sparkdl_comm.collectives.engine.base.Work.wait`."""
        self._work.wait(timeout)
        self._finish()


def check_fits(algorithm: str, topology: Topology) -> None:
    """ConfError if there is no such algorithm, or it cannot run on the topology."""
    if algorithm == AUTO:
        return
    if algorithm not in ALGORITHMS:
        raise ConfError(f"algorithm {algorithm!r}: there are {', '.join([*ALGORITHMS, AUTO])}")
    if ALGORITHMS[algorithm].unfit(topology):
        raise ConfError(f"strategy {algorithm} cannot run on {topology}: {ALGORITHMS[algorithm].unfit(topology)}")


def topology_of(ranks: RankGroup, text: str) -> SubTopology:
    """Where the ranks are; ``text``: of the whole gang's topology, if the user gave one; see :func:`arrange`.

    :raises ConfError: the gang's topology does not fit its ranks; those of the group share no switch.
    """
    topology, order = arrange(ranks.gang.members, text)
    return sub_topology(topology, [order.index(rank) for rank in ranks.ranks])


class CollectiveGroup:
    """Collectives of a gang's ranks by ``algorithm``, or (``auto``) by whichever is cheapest for what is asked.

    All ranks make one, and call the same methods in the same order. A gang may have one for each algorithm. Tensors are on
    ``device``: those of the CPU travel over sockets and all rails, those of a GPU by torch.distributed.

    Each group has connections of its own, so what groups do at the same time need not be in any order.

    :param ranks: those that take part, and make the group; None: all of the gang. Ranks are given by their numbers in it.
    :raises ConfError: the topology does not fit the ranks, or the algorithm not the topology.
    """

    def __init__(
        self, gang: Gang, algorithm: str, conf: CommConf, device: torch.device = CPU, ranks: RankGroup | None = None
    ) -> None:
        self._ranks = ranks = ranks or RankGroup.of_all(gang)
        topology, self._order, rails = topology_of(ranks, conf.topology)
        check_fits(algorithm, topology)
        self.topology = topology
        self.algorithm = algorithm
        self._block, self._timeout = conf.block, conf.timeout
        self._prepared: dict[tuple[Operation, int, int, int], Any] = {}
        self._chosen: dict[tuple[Operation, int, int], str] = {}
        self._parts: dict[tuple[Operation, int, int], Parts] = {}
        #: This rank's number in the plans.
        self.place = self._order.index(ranks.rank)
        places = [ranks.ranks[rank] for rank in self._order]
        self._engine: Engine[Any] = make_engine(gang, algorithm + ranks.name, places, rails, device, conf.timeout)
        try:
            self._meet(conf)
            #: As the topology's rates say, else as measured.
            self.cost = (
                Cost.of(topology)
                if topology.rates
                else known_or_measured_cost(self._engine, topology, ranks.members, self._gather)
            )
        except BaseException:
            self._engine.close()
            raise

    def prepare(self, operation: Operation, count: int, dtype: torch.dtype, root: int = 0) -> Prepared:
        """The plan of a collective of ``count`` elements, connected; made when first asked for."""
        key = (operation, count, dtype.itemsize, root)
        if key not in self._prepared:
            self._prepared[key] = self._engine.prepare(self._plan(*key))
        return self._prepared[key]

    def start(self, operation: Operation, tensor: torch.Tensor, op: str = "sum", root: int = 0) -> Work:
        """Begins a collective on ``tensor``; see :class:`~sparkdl_comm.collectives.plan.Collective` for what it does.

        :raises InputError: the tensor is not contiguous or not on the CPU; an unknown op.
        """
        return self._engine.start(self.prepare(operation, tensor.numel(), tensor.dtype, root), tensor, op)

    def all_gather(self, part: torch.Tensor, result: torch.Tensor) -> Finishing:
        """Begins to gather each rank's ``part`` into ``result``: contiguous, ``[world, *part.shape]``."""
        parts, mine = self._parts_for("all_gather", part), self._ranks.rank
        vector = result.view(-1) if parts.is_plain else part.new_zeros(parts.size)
        parts.put(vector, mine, part.reshape(-1))

        def finish() -> None:
            if not parts.is_plain:
                for rank, row in enumerate(result):
                    parts.get(vector, rank, row.view(-1))

        return Finishing(self.start("all_gather", vector), finish)

    def reduce_scatter(self, tensor: torch.Tensor, result: torch.Tensor, op: str = "sum") -> Finishing:
        """Begins to combine all ranks' ``tensor``, ``[world, *result.shape]``, of which this rank gets its row as ``result``,
        contiguous."""
        parts, mine = self._parts_for("reduce_scatter", result), self._ranks.rank
        vector = tensor.new_zeros(parts.size)
        for rank, row in enumerate(tensor):
            parts.put(vector, rank, row.reshape(-1))
        return Finishing(self.start("reduce_scatter", vector, op), lambda: parts.get(vector, mine, result.view(-1)))

    def arriving(self, operation: Operation, count: int, dtype: torch.dtype, root: int = 0) -> tuple[int, int]:
        """Bytes of a collective that come to this rank: to be combined with its own, and complete ones."""
        nbytes = {Kind.COMBINE: 0, Kind.RECEIVE: 0}
        for step in self.prepare(operation, count, dtype, root).plan.program(self.place).steps:
            if step.kind is not Kind.SEND:
                nbytes[step.kind] += dtype.itemsize * (step.stop - step.start)
        return nbytes[Kind.COMBINE], nbytes[Kind.RECEIVE]

    def does(self, operation: Operation) -> bool:
        """Whether :meth:`start` can do it."""
        return any(self.algorithm in (AUTO, algorithm.name) for algorithm in fitting(operation, self.topology))

    def measure(self) -> Cost:
        """What links cost now. Groups that are made later take it, unless the topology has rates. All ranks call it, when no
        collective is under way."""
        return cost_measured_again(self._engine, self.topology, self._ranks.members, self._gather)

    def close(self) -> None:
        """Closes the connections; whatever is under way fails."""
        self._engine.close()

    def _plan(self, operation: Operation, count: int, itemsize: int, root: int) -> Plan:
        """``root``: a number in the group."""
        name = self._cheapest(operation, count, itemsize) if self.algorithm == AUTO else self.algorithm
        collective = collective_for(name, operation, self.topology, count, itemsize, self.cost, self._block)
        return make_plan(name, replace(collective, root=self._order.index(root)))

    def _parts_for(self, operation: Operation, part: torch.Tensor) -> Parts:
        """Of a vector that has a part like this one for each rank."""
        key = operation, part.numel(), part.element_size()
        if key not in self._parts:

            def make(count: int) -> Plan:
                return self._plan(operation, count, part.element_size(), 0)

            self._parts[key] = Parts(make, part.numel(), self._order)
        return self._parts[key]

    def _cheapest(self, operation: Operation, count: int, itemsize: int) -> str:
        """For the size, rounded up to a power of two: costing all plans takes longer than running some."""
        key = operation, 1 << max(0, count - 1).bit_length(), itemsize
        if key not in self._chosen:
            ranked = ranking(operation, self.topology, *key[1:], self.cost)
            self._chosen[key] = ranked[0].algorithm
            if self._ranks.rank == 0:
                predicted = ", ".join(f"{found.algorithm} {found.seconds:.4g} s" for found in ranked)
                _log.info("%s up to %d bytes, predicted: %s; takes the first", operation, key[1] * itemsize, predicted)
        return self._chosen[key]

    def _gather(self, mine: bytes) -> list[bytes]:
        return self._ranks.all_gather(mine, self._timeout)

    def _meet(self, conf: CommConf) -> None:
        """Returns when all ranks accept connections, and agree on how they will communicate."""
        mine = json.dumps([str(self.topology), self._order, self.algorithm, conf.block]).encode()
        for rank, theirs in enumerate(self._gather(mine)):
            if theirs != mine:
                raise GangError(
                    f"rank {rank} has topology, order, algorithm and block {theirs.decode()}, rank {self._ranks.rank} has"
                    f" {mine.decode()}"
                )
