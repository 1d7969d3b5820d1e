"""What a training function of one's own uses to talk to the other ranks; see :class:`sparkdl_comm.CommDistributor`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.engine.torch_p2p import process_group_of
from sparkdl_comm.collectives.group import AUTO, CollectiveGroup, topology_of
from sparkdl_comm.collectives.handle import EngineWork, Handle, typed
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.collectives.rank_group import RankGroup
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import GangError, InputError
from sparkdl_comm.gang.gang import Gang


class Closable(Protocol):
    """What ends with a Communicator."""

    def close(self) -> None: ...


T = TypeVar("T")
C = TypeVar("C", bound=Closable)

_OPERATIONS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
_current: Communicator | None = None


class Communicator:
    """One rank's way to the others. ``Communicator.current()`` gives it, inside a function that CommDistributor runs.

    All ranks call the same collectives, in the same order, with tensors of the same shape and dtype. Tensors are on the CPU
    or on :attr:`device`. Each collective is there twice: blocking, and as ``…_async``, which returns a :class:`Handle`.

    If ``spark.sparkdl.comm.strategy`` names an algorithm of this package, such as ``bml``, or ``auto``, then collectives on
    tensors on :attr:`device` are done by it, where it can; the rest by torch.distributed.
    """

    def __init__(self, gang: Gang, device: torch.device, conf: CommConf, ranks: RankGroup | None = None) -> None:
        """Not to be called directly."""
        self._gang = gang
        self._ranks = ranks = ranks or RankGroup.of_all(gang)
        self._parts: list[Communicator] = []
        self._process_group: dist.ProcessGroup | None = None
        #: By their numbers in torch's group, which has another order than this one may have.
        self._torch_order = [ranks.ranks.index(rank) for rank in sorted(ranks.ranks)]
        self._conf = conf
        self._timeout = conf.timeout
        self._groups: dict[str, CollectiveGroup] = {}
        self._made: dict[str, Closable] = {}
        self._awaited: list[str] = []
        self.rank = ranks.rank
        self.world = ranks.world
        self.device = device
        #: The address of each rank's host, by rank.
        self.hosts = tuple(member.host for member in ranks.members)

    @staticmethod
    def current() -> Communicator:
        """This rank's. :class:`GangError` outside of a function that CommDistributor runs."""
        if _current is None:
            raise GangError("there is no Communicator here: only a function that CommDistributor runs has one")
        return _current

    @staticmethod
    def is_there() -> bool:
        """Whether :meth:`current` gives one."""
        return _current is not None

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A Communicator of those ranks that give the same ``color``, as ``MPI_Comm_split`` makes it. All ranks call it.

        Ranks are numbered anew in it, from 0, ordered by ``key``, then by their numbers here. It has connections of its own,
        and ends with this one. Of a BCube, its ranks must be a row or a smaller BCube to use this package's algorithms.

        :param color: any whole number; None: to be in none, and get None.
        :raises InputError: color or key is not a whole number.
        :raises DeadlineError: a rank did not call it in time.
        """
        ranks = self._ranks.split(color, key, self._timeout)
        if ranks is None:
            return None
        self._parts.append(Communicator(self._gang, self.device, self._conf, ranks))
        return self._parts[-1]

    def collectives(self, algorithm: str) -> CollectiveGroup:
        """This package's collectives by ``algorithm``, or by whichever is cheapest (``auto``); made when first asked for, by
        all ranks. See :mod:`sparkdl_comm.ddp_hooks`.

        :raises ConfError: no such algorithm, or it does not fit the topology.
        """
        if algorithm not in self._groups:
            self._groups[algorithm] = CollectiveGroup(self._gang, algorithm, self._conf, self.device, self._ranks)
        return self._groups[algorithm]

    def once(self, name: str, make: Callable[[RankGroup, CommConf, torch.device], C], awaited: bool = False) -> C:
        """What ``make`` made when it was first asked for ``name``, by all ranks; closed with this Communicator.
        ``awaited``: other ranks cannot end before it is closed, so that is when the function has returned."""
        if name not in self._made:
            self._made[name] = make(self._ranks, self._conf, self.device)
            if awaited:
                self._awaited.append(name)
        return cast(C, self._made[name])

    def leave(self) -> None:
        """Not to be called directly. Closes what other ranks wait for, before this rank waits for them."""
        while self._awaited:
            self._made.pop(self._awaited.pop()).close()
        for part in self._parts:
            part.leave()

    def close(self) -> None:
        """Not to be called directly."""
        for made in self._made.values():
            made.close()
        for part in self._parts:
            part.close()
        for group in self._groups.values():
            group.close()

    @property
    def has_communicated(self) -> bool:
        """Whether this rank has used it by other ways than torch.distributed's."""
        return bool(self._groups or self._made or self._parts)

    @property
    def local_rank(self) -> int:
        """Number of this rank among those with the same host, from 0."""
        return self.hosts[: self.rank].count(self.hosts[self.rank])

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """``tensor``, overwritten with the sum (``min``, ``max``) of all ranks'; the same bits on all of them."""
        return self.all_reduce_async(tensor, op).wait()

    def all_reduce_async(self, tensor: torch.Tensor, op: str = "sum") -> Handle[torch.Tensor]:
        group = self._own("all_reduce", tensor)
        if group is not None and op in _OPERATIONS:
            return self._start("all-reduce", tensor, lambda: EngineWork(group.start("all_reduce", tensor, op)))
        return self._start(
            "all-reduce", tensor, lambda: dist.all_reduce(tensor, _operation(op), self._torch(), async_op=True)
        )

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        """``tensor``, overwritten with that of rank ``root``."""
        return self.broadcast_async(tensor, root).wait()

    def broadcast_async(self, tensor: torch.Tensor, root: int = 0) -> Handle[torch.Tensor]:
        if not 0 <= root < self.world:
            raise InputError(f"broadcast from root={root}: there are ranks 0 to {self.world - 1}")
        group = self._own("broadcast", tensor)
        if group is not None:
            return self._start("broadcast", tensor, lambda: EngineWork(group.start("broadcast", tensor, root=root)))
        source = self._ranks.ranks[root]
        return self._start("broadcast", tensor, lambda: dist.broadcast(tensor, source, self._torch(), async_op=True))

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """New tensor ``[world, *tensor.shape]`` of the ranks' tensors."""
        return self.all_gather_async(tensor).wait()

    def all_gather_async(self, tensor: torch.Tensor) -> Handle[torch.Tensor]:
        result = tensor.new_empty((self.world, *tensor.shape))
        group = self._own("all_gather", tensor)
        if group is not None:
            return self._start("all-gather", result, lambda: EngineWork(group.all_gather(tensor, result)))
        rows = [result[rank] for rank in self._torch_order]
        return self._start(
            "all-gather", result, lambda: dist.all_gather(rows, tensor.contiguous(), self._torch(), async_op=True)
        )

    def reduce_scatter(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """This rank's part of the sum: ``tensor`` is ``[world, …]``, the result, a new tensor, ``[…]``.

        :raises InputError: the first dimension is not ``world``.
        """
        return self.reduce_scatter_async(tensor, op).wait()

    def reduce_scatter_async(self, tensor: torch.Tensor, op: str = "sum") -> Handle[torch.Tensor]:
        if tensor.dim() == 0 or tensor.shape[0] != self.world:
            raise InputError(
                f"reduce_scatter of shape {list(tensor.shape)}: the first dimension must be {self.world} ranks"
            )
        result = tensor.new_empty(tensor.shape[1:])
        group = self._own("reduce_scatter", tensor)
        if group is not None and op in _OPERATIONS:
            return self._start("reduce-scatter", result, lambda: EngineWork(group.reduce_scatter(tensor, result, op)))
        ordered = tensor[self._torch_order] if self._ranks.name else tensor
        return self._start(
            "reduce-scatter",
            result,
            lambda: dist.reduce_scatter_tensor(  # gloo takes no other shapes
                result.view(-1), ordered.reshape(-1), _operation(op), self._torch(), async_op=True
            ),
        )

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self.barrier_async().wait()

    def barrier_async(self) -> Handle[None]:
        return self._start("barrier", None, lambda: dist.barrier(self._torch(), async_op=True))

    def in_step(self, batches: Iterable[T]) -> Iterator[T]:
        """``batches``, as long as *every* rank has another one: partitions differ in length, and a rank that goes on alone
        waits for the others in vain. One small all-reduce for each batch."""
        for batch in batches:
            if not self._all_have_one(True):
                return
            yield batch
        self._all_have_one(False)

    def _all_have_one(self, mine: bool) -> bool:
        return bool(self.all_reduce(torch.tensor(int(mine), device=self.device), "min").item())

    def _own(self, operation: Operation, tensor: torch.Tensor) -> CollectiveGroup | None:
        """The group that does it; None: torch.distributed is to. The same on all ranks, whose tensors are alike."""
        if self._algorithm is None or tensor.device != self.device or not tensor.is_contiguous():
            return None
        if tensor.is_complex() or tensor.dtype is torch.bool:
            return None
        group = self.collectives(self._algorithm)
        return group if group.does(operation) else None

    @functools.cached_property
    def _algorithm(self) -> str | None:
        """By which this package does collectives; None: it does none. One that fits the whole may not fit a part of it."""
        algorithm, is_part = self._conf.strategy, bool(self._ranks.name)
        if is_part and algorithm in ALGORITHMS:
            topology = topology_of(self._ranks, self._conf.topology).topology
            return None if ALGORITHMS[algorithm].unfit(topology) else algorithm
        return algorithm if algorithm in (*ALGORITHMS, AUTO) else None

    def _torch(self) -> dist.ProcessGroup | None:
        """torch's group of these ranks, made when they first need it; None: the default group."""
        if self._ranks.name and self._process_group is None:
            self._process_group = process_group_of(self._ranks.ranks, self._timeout)
        return self._process_group

    def _start(self, what: str, result: T, start: Callable[[], Any]) -> Handle[T]:
        with typed(what, self._gang, self._timeout):
            work = start()
        return Handle(what, self._gang, self._timeout, work, result)


@contextmanager
def installed(communicator: Communicator) -> Iterator[Communicator]:
    """Has :meth:`Communicator.current` return ``communicator``."""
    global _current
    _current = communicator
    try:
        yield communicator
    finally:
        _current = None
        communicator.close()


def _operation(name: str) -> Any:
    if name not in _OPERATIONS:
        raise InputError(f"op={name!r}: there are {', '.join(_OPERATIONS)}")
    return _OPERATIONS[name]
