"""CollectiveGroup: a rank's collectives. It makes plans on demand, caches them, and runs them on an engine.

Callers of reduce-scatter and all-gather have parts of equal length. :class:`PartLayout` places them in the plan's vector.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from sparkdl_comm.collectives.algorithms import ALGORITHMS, make_plan
from sparkdl_comm.collectives.cost import Cost, list_eligible, make_collective, rank_algorithms
from sparkdl_comm.collectives.discover import SubTopology, arrange, get_or_measure_cost, remeasure_cost, sub_topology
from sparkdl_comm.collectives.engine import Engine, PreparedPlan
from sparkdl_comm.collectives.engine.peer_memory import OwnMemory, PeerMemory
from sparkdl_comm.collectives.engine.peer_sockets import PeerSockets
from sparkdl_comm.collectives.engine.sockets import SocketEngine
from sparkdl_comm.collectives.plan import Operation, Plan, StepKind
from sparkdl_comm.collectives.work import Work
from sparkdl_comm.conf import CommConf
from sparkdl_comm.conf.strategy import CHEAPEST
from sparkdl_comm.errors import ConfError, GangError, InputError
from sparkdl_comm.gang.control import VERDICT_SECONDS
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.topology import Topology


class RankGroup:
    """Group of ranks that includes this rank. All its ranks create the same group.

    :param ranks: ``ranks[r]``: the gang's rank that has number ``r`` in the group.
    :param name: differs from the name of every other group of this rank; "" for the whole gang.
    """

    def __init__(self, gang: Gang, ranks: Sequence[int], name: str) -> None:
        self.gang, self.ranks, self.name = gang, tuple(ranks), name
        #: Number of this rank in the group.
        self.rank = self.ranks.index(gang.rank)
        self.world = len(self.ranks)
        self.members = tuple(gang.members[rank] for rank in self.ranks)
        self._splits = self._gathers = 0
        self._store = gang.store(f"group {name}") if name else None

    @classmethod
    def of_gang(cls, gang: Gang) -> RankGroup:
        return cls(gang, range(gang.world), "")

    def neighbors(self, rank: int) -> list[int]:
        """Return the other ranks with the addresses of this rank's NICs, so perhaps on its host."""
        addresses = [[rail.address for rail in member.rails] for member in self.members]
        return [other for other in range(self.world) if other != rank and addresses[other] == addresses[rank]]

    def split(self, color: int | None, key: int, timeout: float) -> RankGroup | None:
        """Return the group of the ranks that pass the same ``color``; None if this rank's color is None.

        Ranks are ordered by ``key``, then by their numbers here. All ranks of this group call it, in the same order.

        :param timeout: seconds to wait for the other ranks.
        :raises InputError: color or key is not an integer.
        :raises DeadlineError: a rank did not call it in time.
        """
        if type(color) not in (int, type(None)) or type(key) is not int:
            raise InputError(f"split(color={color!r}, key={key!r}): both must be integers. color=None joins no group")
        number, self._splits = self._splits, self._splits + 1
        messages = [json.loads(theirs) for theirs in self.all_gather(json.dumps([color, key]).encode(), timeout)]
        if color is None:
            return None
        members = sorted((theirs[1], rank) for rank, theirs in enumerate(messages) if theirs[0] == color)
        return RankGroup(self.gang, [self.ranks[rank] for _, rank in members], f"{self.name}/{number}:{color}")

    def all_gather(self, value: bytes, timeout: float) -> list[bytes]:
        """Return the value of each rank of the group, by its number here. Otherwise like :meth:`Gang.all_gather`."""
        if self._store is None:
            return self.gang.all_gather(value, timeout)
        number, self._gathers = self._gathers, self._gathers + 1
        self._store.set_timeout(datetime.timedelta(seconds=timeout))
        self._store.set(f"{number} {self.rank}", value)
        found = self._store.multi_get([f"{number} {rank}" for rank in range(self.world)])
        if number:  # a rank that takes part in this gather has completed the previous one
            self._store.delete_key(f"{number - 1} {self.rank}")
        return found


class PartLayout:
    """Positions of the parts of a gang's ranks in a vector of :attr:`size` elements.

    Algorithms decide which elements a rank owns. With BML a rank owns many pieces. A ring on BCube does not follow the
    order of the ranks. Some ranks own a few elements more than others. So the plan's vector is longer than the parts
    together if necessary. A part fills the ranges that its rank owns from their beginning, and the rest is zero.

    :param make: function that returns the plan for a vector of the given number of elements.
    :param count: elements per part.
    :param order: ``order[place]``: the gang's rank that is rank ``place`` of the plans.
    """

    def __init__(self, make: Callable[[int], Plan], count: int, order: Sequence[int]) -> None:
        self.size, missing = 0, count
        while missing > 0 or not self.size:
            self.size += max(1, missing) * len(order)
            plan = make(self.size)
            owned_ranges = [plan.owned_ranges(place) for place in range(len(order))]
            missing = count - min(sum(stop - start for start, stop in ranges) for ranges in owned_ranges)
        self._ranges = {
            rank: list(_first_elements(ranges, count)) for rank, ranges in zip(order, owned_ranges, strict=True)
        }
        #: True if the vector consists of the parts in the order of the ranks, and of nothing else.
        self.is_in_rank_order = self.size == count * len(order) and all(
            self._ranges[rank] == [(rank * count, (rank + 1) * count)] for rank in order
        )

    def put(self, vector: torch.Tensor, rank: int, part: torch.Tensor) -> None:
        """Copy the part of ``rank`` into the vector. Both are flat."""
        for offset, start, stop in self._pieces(rank):
            vector[start:stop] = part[offset : offset + stop - start]

    def get(self, vector: torch.Tensor, rank: int, part: torch.Tensor) -> None:
        """Copy the part of ``rank`` from the vector into ``part``. Both are flat."""
        for offset, start, stop in self._pieces(rank):
            part[offset : offset + stop - start] = vector[start:stop]

    def _pieces(self, rank: int) -> Iterator[tuple[int, int, int]]:
        """Yield the pieces of a part as (offset in the part, start in the vector, stop in the vector)."""
        offset = 0
        for start, stop in self._ranges[rank]:
            yield offset, start, stop
            offset += stop - start


def _first_elements(ranges: Sequence[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the first ``count`` elements of ``ranges``."""
    for start, stop in ranges:
        stop = min(stop, start + count)
        if start < stop:
            yield start, stop
        count -= stop - start


def make_engine(
    ranks: RankGroup, name: str, order: Sequence[int], rails: Sequence[int], device: torch.device, conf: CommConf
) -> Engine[Any]:
    """Return this rank's engine: over sockets and the rails for CPU tensors, over torch.distributed for others.

    :param ranks: ranks that create the engine.
    :param name: name of the engine; each engine of a gang has its own.
    :param order: ``order[place]``: number in the group of the rank that is rank ``place`` of the plans.
    :param rails: ``rails[rail]``: the gang's rail that is rail ``rail`` of the plans.
    """
    gang, place, timeout = ranks.gang, order.index(ranks.rank), conf.timeout
    places = [ranks.ranks[rank] for rank in order]
    if device.type != "cpu":
        from sparkdl_comm.collectives.engine.torch_p2p import TorchEngine, process_group_of

        return TorchEngine(place, places, device, process_group_of(places, timeout))
    own_memory = OwnMemory()
    memories = {order.index(rank): memory for rank, memory in _find_memories(own_memory, ranks, conf).items()}
    engine = SocketEngine(place, PeerSockets(gang, name, places, rails, timeout, memories), timeout, own_memory)
    # Weak reference: the gang may outlive the engine, which holds memory and plans.
    reference = weakref.ref(engine)
    gang.close_in_children(lambda: [] if (live := reference()) is None else live.sockets())
    gang.on_failure(lambda failure: None if (live := reference()) is None else live.abort(failure.to_exception()))
    return engine


def _find_memories(own_memory: OwnMemory, ranks: RankGroup, conf: CommConf) -> dict[int, PeerMemory]:
    """Return the memory of the peers on this host, by their numbers in the group. All ranks of the group call it."""
    if not any(ranks.neighbors(rank) for rank in range(ranks.world)):
        return {}

    def gather(value: bytes) -> list[bytes]:
        return ranks.all_gather(value, conf.timeout)

    neighbors, is_allowed = ranks.neighbors(ranks.rank), conf.collective.shared_memory
    found = own_memory.find_peers(ranks.rank, neighbors, gather, is_allowed=is_allowed)
    if is_allowed and len(found) < len(neighbors):
        others = sorted(set(neighbors) - found.keys())
        _log.info("rank %d and ranks %s use TCP: they cannot read each other's memory", ranks.rank, others)
    return found


CPU = torch.device("cpu")

_log = logging.getLogger(__name__)


def check_fits(algorithm: str, topology: Topology) -> None:
    """Check that the algorithm exists and can run on the topology.

    :raises ConfError: it does not exist or cannot run.
    """
    if algorithm == CHEAPEST:
        return
    if algorithm not in ALGORITHMS:
        raise ConfError(f"algorithm {algorithm!r}: there are {', '.join([*ALGORITHMS, CHEAPEST])}")
    if ALGORITHMS[algorithm].why_ineligible(topology):
        raise ConfError(
            f"strategy {algorithm} cannot run on {topology}: {ALGORITHMS[algorithm].why_ineligible(topology)}"
        )


def topology_of(ranks: RankGroup, text: str) -> SubTopology:
    """Return the topology of the ranks.

    :param text: topology of the whole gang that the user configured; empty if none. See :func:`arrange`.
    :raises ConfError: the gang's topology does not fit its ranks, or the ranks of the group share no switch.
    """
    topology, order = arrange(ranks.gang.members, text)
    return sub_topology(topology, [order.index(rank) for rank in ranks.ranks])


class CollectiveGroup:
    """Collectives among ranks of a gang, by one algorithm.

    All ranks create a group and call the same methods in the same order. A gang may have one group per algorithm.
    Tensors are on ``device``: CPU tensors travel over sockets and all rails, GPU tensors by torch.distributed.

    Each group has its own connections, so collectives of different groups may run at the same time in any order.

    :param algorithm: name of an algorithm. ``cheapest``: the group picks one for each operation and size.
    :param ranks: ranks that create the group and take part; None for the whole gang. Ranks are numbered within it.
    :raises ConfError: the topology does not fit the ranks, or the algorithm does not fit the topology.
    """

    def __init__(
        self, gang: Gang, algorithm: str, conf: CommConf, device: torch.device = CPU, ranks: RankGroup | None = None
    ) -> None:
        self._ranks = ranks = ranks or RankGroup.of_gang(gang)
        topology, self._order, rails = topology_of(ranks, conf.topology)
        check_fits(algorithm, topology)
        self.topology = topology
        self.algorithm = algorithm
        self._block, self._timeout = conf.collective.block, conf.timeout
        self._prepared: dict[tuple[Operation, int, int, int], PreparedPlan] = {}
        self._cheapest_by_size: dict[tuple[Operation, int, int], str] = {}
        self._layouts: dict[tuple[Operation, int, int], PartLayout] = {}
        addresses = tuple(tuple(rail.address for rail in member.rails) for member in ranks.members)
        self._cost_key = addresses, conf.collective.shared_memory
        #: This rank's number in the plans.
        self.place = self._order.index(ranks.rank)
        self._engine: Engine[Any] = make_engine(ranks, algorithm + ranks.name, self._order, rails, device, conf)
        try:
            self._check_agreement(conf)
            #: Costs from the topology's rates if it has any, else measured.
            self.cost = (
                Cost.of(topology)
                if topology.rates
                else get_or_measure_cost(self._engine, topology, self._cost_key, self._gather)
            )
        except BaseException:
            self._engine.close()
            raise

    def prepare(self, operation: Operation, count: int, dtype: torch.dtype, root: int = 0) -> PreparedPlan:
        """Return the prepared plan of a collective of ``count`` elements. The first call makes the plan and connects."""
        key = (operation, count, dtype.itemsize, root)
        if key not in self._prepared:
            self._prepared[key] = self._engine.prepare(self._plan(*key))
        return self._prepared[key]

    def start(self, operation: Operation, tensor: torch.Tensor, op: str = "sum", root: int = 0) -> Work[torch.Tensor]:
        """Begin a collective on ``tensor``, in place. :class:`~sparkdl_comm.collectives.plan.Collective` defines the
        result.

        :raises InputError: the tensor is not contiguous or not on the group's device, or ``op`` is unknown.
        :raises SparkdlCommError: the gang's failure if there is one, else why the collective cannot begin.
        """
        with self._raise_gang_failure():
            work = self._engine.start(self.prepare(operation, tensor.numel(), tensor.dtype, root), tensor, op)
        return work.map(lambda tensor: tensor, guard=self._raise_gang_failure)

    def all_gather(self, part: torch.Tensor, result: torch.Tensor) -> Work[torch.Tensor]:
        """Begin to gather each rank's ``part`` into ``result``: contiguous, ``[world, *part.shape]``."""
        layout, mine = self._layout_for("all_gather", part), self._ranks.rank
        vector = result.view(-1) if layout.is_in_rank_order else part.new_zeros(layout.size)
        layout.put(vector, mine, part.reshape(-1))

        def finish(vector: torch.Tensor) -> torch.Tensor:
            if not layout.is_in_rank_order:
                for rank, row in enumerate(result):
                    layout.get(vector, rank, row.view(-1))
            return result

        return self.start("all_gather", vector).map(finish)

    def reduce_scatter(self, tensor: torch.Tensor, result: torch.Tensor, op: str = "sum") -> Work[torch.Tensor]:
        """Begin to combine the ranks' ``tensor``, ``[world, *result.shape]``, and put this rank's row into ``result``.

        ``result`` must be contiguous.
        """
        layout, mine = self._layout_for("reduce_scatter", result), self._ranks.rank
        vector = tensor.new_zeros(layout.size)
        for rank, row in enumerate(tensor):
            layout.put(vector, rank, row.reshape(-1))

        def finish(vector: torch.Tensor) -> torch.Tensor:
            layout.get(vector, mine, result.view(-1))
            return result

        return self.start("reduce_scatter", vector, op).map(finish)

    def arriving_bytes(self, operation: Operation, count: int, dtype: torch.dtype, root: int = 0) -> tuple[int, int]:
        """Return the bytes that a collective sends to this rank: (bytes to combine with its own, bytes to store as they
        are).
        """
        nbytes = {StepKind.COMBINE: 0, StepKind.RECEIVE: 0}
        for step in self.prepare(operation, count, dtype, root).plan.program(self.place).steps:
            if step.kind is not StepKind.SEND:
                nbytes[step.kind] += dtype.itemsize * (step.stop - step.start)
        return nbytes[StepKind.COMBINE], nbytes[StepKind.RECEIVE]

    def supports(self, operation: Operation) -> bool:
        """Return whether :meth:`start` supports the operation."""
        return any(
            self.algorithm in (CHEAPEST, algorithm.name) for algorithm in list_eligible(operation, self.topology)
        )

    def measure(self) -> Cost:
        """Measure the current cost of links. All ranks must call it, while no collective is under way.

        Groups that are created later use the result, unless the topology has rates.
        """
        return remeasure_cost(self._engine, self.topology, self._cost_key, self._gather)

    def close(self) -> None:
        """Close the connections. Collectives under way fail."""
        self._engine.close()

    @contextlib.contextmanager
    def _raise_gang_failure(self) -> Iterator[None]:
        """Raise the gang's failure, if there is one, in place of the local symptom."""
        try:
            yield
        except GangError:
            self._ranks.gang.check(VERDICT_SECONDS)
            raise

    def _plan(self, operation: Operation, count: int, itemsize: int, root: int) -> Plan:
        """Return the plan of a collective. ``root`` is numbered within the group."""
        name = self._select_cheapest(operation, count, itemsize) if self.algorithm == CHEAPEST else self.algorithm
        collective = make_collective(name, operation, self.topology, count, itemsize, self.cost, self._block)
        return make_plan(name, replace(collective, root=self._order.index(root)))

    def _layout_for(self, operation: Operation, part: torch.Tensor) -> PartLayout:
        """Return the layout of a vector with one part of this size for each rank."""
        key = operation, part.numel(), part.element_size()
        if key not in self._layouts:

            def make(count: int) -> Plan:
                return self._plan(operation, count, part.element_size(), 0)

            self._layouts[key] = PartLayout(make, part.numel(), self._order)
        return self._layouts[key]

    def _select_cheapest(self, operation: Operation, count: int, itemsize: int) -> str:
        """Return the cheapest algorithm for ``count`` rounded up to a power of two.

        The result is cached, because predicting all algorithms takes longer than running some of them.
        """
        key = operation, 1 << max(0, count - 1).bit_length(), itemsize
        if key not in self._cheapest_by_size:
            ranked = rank_algorithms(operation, self.topology, *key[1:], self.cost)
            self._cheapest_by_size[key] = ranked[0].algorithm
            if self._ranks.rank == 0:
                predicted = ", ".join(f"{found.algorithm} {found.seconds:.4g} s" for found in ranked)
                _log.info("%s up to %d bytes: predicted %s. Using the first.", operation, key[1] * itemsize, predicted)
        return self._cheapest_by_size[key]

    def _gather(self, mine: bytes) -> list[bytes]:
        return self._ranks.all_gather(mine, self._timeout)

    def _check_agreement(self, conf: CommConf) -> None:
        """Wait until all ranks accept connections, and check that they agree on how to communicate.

        :raises GangError: a rank has other settings.
        """
        collective = conf.collective
        settings = [str(self.topology), self._order, self.algorithm, collective.block, collective.shared_memory]
        mine = json.dumps(settings).encode()
        for rank, theirs in enumerate(self._gather(mine)):
            if theirs != mine:
                raise GangError(
                    f"rank {rank} has (topology, order, algorithm, block, shared memory) {theirs.decode()}, but rank"
                    f" {self._ranks.rank} has {mine.decode()}. Use the same settings on all ranks"
                )
