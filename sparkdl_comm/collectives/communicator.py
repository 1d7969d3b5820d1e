"""Communicator: collectives for users' training functions. See :class:`sparkdl_comm.CommDistributor`."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.engine.torch_p2p import process_group_of
from sparkdl_comm.collectives.group import CollectiveGroup, RankGroup, topology_of
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.collectives.work import Work
from sparkdl_comm.conf import CommConf
from sparkdl_comm.conf.strategy import AUTO, CHEAPEST
from sparkdl_comm.errors import DeadlineError, GangError, InputError, SparkdlCommError
from sparkdl_comm.gang.control import VERDICT_SECONDS
from sparkdl_comm.gang.failure import is_peer_late
from sparkdl_comm.gang.frames import TIMEOUT_KEY
from sparkdl_comm.gang.gang import Gang


class Closable(Protocol):
    """Object that a Communicator closes when it ends."""

    def close(self) -> None: ...


T = TypeVar("T")
C = TypeVar("C", bound=Closable)

_REDUCE_OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
_current: Communicator | None = None


class Communicator:
    """Collectives between one rank and the others. A function that CommDistributor runs gets it with :meth:`current`.

    All ranks must call the same collectives in the same order, with tensors of the same shape and dtype. Tensors are on
    the CPU or on :attr:`device`. Each collective has a blocking method, and an ``…_async`` method that returns a
    :class:`~sparkdl_comm.collectives.work.Work`.

    ``spark.sparkdl.comm.strategy`` may name an algorithm of this package, such as ``bml``, or be ``cheapest``. Then the
    algorithm runs the collectives on :attr:`device` that it supports, and torch.distributed runs the rest.
    """

    def __init__(self, gang: Gang, device: torch.device, conf: CommConf, ranks: RankGroup | None = None) -> None:
        """Create a Communicator. Internal: user code calls :meth:`current`."""
        self._gang = gang
        self._ranks = ranks = ranks or RankGroup.of_gang(gang)
        self._splits: list[Communicator] = []
        self._process_group: dist.ProcessGroup | None = None
        #: This group's rank numbers in the order of torch's process group, which sorts them by rank in the gang.
        self._torch_order = [ranks.ranks.index(rank) for rank in sorted(ranks.ranks)]
        self._conf = conf
        self._timeout = conf.timeout
        self._groups: dict[str, CollectiveGroup] = {}
        self._objects: dict[str, Closable] = {}
        self._awaited_names: list[str] = []
        self.rank = ranks.rank
        self.world = ranks.world
        self.device = device
        #: Address of each rank's host, indexed by rank.
        self.hosts = tuple(member.host for member in ranks.members)

    @staticmethod
    def current() -> Communicator:
        """Return this rank's Communicator.

        :raises GangError: called outside of a function that CommDistributor runs.
        """
        if _current is None:
            raise GangError("there is no Communicator here: only a function that CommDistributor runs has one")
        return _current

    @staticmethod
    def is_there() -> bool:
        """Return whether :meth:`current` has a Communicator to return."""
        return _current is not None

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Return a Communicator of the ranks that pass the same ``color``, like ``MPI_Comm_split``.

        All ranks must call it. The new ranks are numbered from 0, ordered by ``key``, then by their numbers here. The
        new Communicator has its own connections and closes with this one. On a BCube, its ranks must form a row or a
        smaller BCube to use this package's algorithms.

        :param color: an integer; None to join no group and return None.
        :raises InputError: color or key is not an integer.
        :raises DeadlineError: a rank did not call it in time.
        """
        ranks = self._ranks.split(color, key, self._timeout)
        if ranks is None:
            return None
        self._splits.append(Communicator(self._gang, self.device, self._conf, ranks))
        return self._splits[-1]

    def collectives(self, algorithm: str) -> CollectiveGroup:
        """Return this package's collectives by ``algorithm``, or by the cheapest one for each size (``cheapest``).

        The first call creates the group, so all ranks must make it. See :mod:`sparkdl_comm.ddp_hooks`.

        :raises ConfError: the algorithm is unknown or does not fit the topology.
        """
        if algorithm not in self._groups:
            self._groups[algorithm] = CollectiveGroup(self._gang, algorithm, self._conf, self.device, self._ranks)
        return self._groups[algorithm]

    def once(self, name: str, make: Callable[[RankGroup, CommConf, torch.device], C], is_awaited: bool = False) -> C:
        """Return the object called ``name``. The first call creates it with ``make``, so all ranks must make that call.

        The object is closed with this Communicator.

        :param is_awaited: close the object as soon as the user's function has returned: other ranks wait for that before
            they end.
        """
        if name not in self._objects:
            self._objects[name] = make(self._ranks, self._conf, self.device)
            if is_awaited:
                self._awaited_names.append(name)
        return cast(C, self._objects[name])

    def close_awaited(self) -> None:
        """Close the ``is_awaited`` objects of :meth:`once`, before this rank waits for other ranks. Internal."""
        while self._awaited_names:
            self._objects.pop(self._awaited_names.pop()).close()
        for part in self._splits:
            part.close_awaited()

    def close(self) -> None:
        """Close all groups, all objects of :meth:`once`, and the Communicators split from this one. Internal."""
        for object_ in self._objects.values():
            object_.close()
        for part in self._splits:
            part.close()
        for group in self._groups.values():
            group.close()

    @property
    def has_communicated(self) -> bool:
        """True if this rank has used :meth:`once`, :meth:`split` or this package's collectives."""
        return bool(self._groups or self._objects or self._splits)

    @property
    def local_rank(self) -> int:
        """Index of this rank among the ranks on the same host, from 0."""
        return self.hosts[: self.rank].count(self.hosts[self.rank])

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Overwrite ``tensor``, of any shape, with the sum over all ranks, and return it: the same bits on all ranks.

        :param op: ``sum``, ``min`` or ``max``.
        :raises InputError: ``op`` is something else.
        """
        return self.all_reduce_async(tensor, op).wait()

    def all_reduce_async(self, tensor: torch.Tensor, op: str = "sum") -> Work[torch.Tensor]:
        """Start :meth:`all_reduce` of ``tensor``, of any shape. Do not use it before the Work has ended.

        :raises InputError: as :meth:`all_reduce`.
        """
        group = self._group_for("all_reduce", tensor)
        if group is not None and op in _REDUCE_OPS:
            return self._start("all-reduce", lambda: group.start("all_reduce", tensor, op))
        return self._start_torch(
            "all-reduce", tensor, lambda: dist.all_reduce(tensor, _reduce_op(op), self._torch_group(), async_op=True)
        )

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        """Overwrite ``tensor``, of any shape, with the tensor of rank ``root``, and return it.

        :raises InputError: there is no rank ``root``.
        """
        return self.broadcast_async(tensor, root).wait()

    def broadcast_async(self, tensor: torch.Tensor, root: int = 0) -> Work[torch.Tensor]:
        """Start :meth:`broadcast` of ``tensor``, of any shape. Do not use it before the Work has ended.

        :raises InputError: as :meth:`broadcast`.
        """
        if not 0 <= root < self.world:
            raise InputError(f"broadcast from root={root}: there are ranks 0 to {self.world - 1}")
        group = self._group_for("broadcast", tensor)
        if group is not None:
            return self._start("broadcast", lambda: group.start("broadcast", tensor, root=root))
        source = self._ranks.ranks[root]
        return self._start_torch(
            "broadcast", tensor, lambda: dist.broadcast(tensor, source, self._torch_group(), async_op=True)
        )

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks as a new tensor ``[world, *tensor.shape]``."""
        return self.all_gather_async(tensor).wait()

    def all_gather_async(self, tensor: torch.Tensor) -> Work[torch.Tensor]:
        """Start :meth:`all_gather`. The Work's result is the new tensor ``[world, *tensor.shape]``."""
        result = tensor.new_empty((self.world, *tensor.shape))
        group = self._group_for("all_gather", tensor)
        if group is not None:
            return self._start("all-gather", lambda: group.all_gather(tensor, result))
        rows = [result[rank] for rank in self._torch_order]
        return self._start_torch(
            "all-gather", result, lambda: dist.all_gather(rows, tensor.contiguous(), self._torch_group(), async_op=True)
        )

    def reduce_scatter(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Return this rank's row of the sum over all ranks. ``tensor`` is ``[world, …]``, the result is a new tensor.

        :param op: ``sum``, ``min`` or ``max``.
        :raises InputError: the first dimension is not ``world``, or ``op`` is something else.
        """
        return self.reduce_scatter_async(tensor, op).wait()

    def reduce_scatter_async(self, tensor: torch.Tensor, op: str = "sum") -> Work[torch.Tensor]:
        """Start :meth:`reduce_scatter` of ``tensor``, ``[world, …]``. The Work's result is the new tensor.

        :raises InputError: as :meth:`reduce_scatter`.
        """
        if tensor.dim() == 0 or tensor.shape[0] != self.world:
            raise InputError(
                f"reduce_scatter of shape {list(tensor.shape)}: the first dimension must be {self.world}, one row per rank"
            )
        result = tensor.new_empty(tensor.shape[1:])
        group = self._group_for("reduce_scatter", tensor)
        if group is not None and op in _REDUCE_OPS:
            return self._start("reduce-scatter", lambda: group.reduce_scatter(tensor, result, op))
        ordered = tensor[self._torch_order] if self._ranks.name else tensor
        return self._start_torch(
            "reduce-scatter",
            result,
            lambda: dist.reduce_scatter_tensor(  # gloo accepts flat tensors only
                result.view(-1), ordered.reshape(-1), _reduce_op(op), self._torch_group(), async_op=True
            ),
        )

    def barrier(self) -> None:
        """Wait until all ranks have called it."""
        self.barrier_async().wait()

    def barrier_async(self) -> Work[None]:
        """Start :meth:`barrier`. The Work ends when all ranks have called it."""
        return self._start_torch("barrier", None, lambda: dist.barrier(self._torch_group(), async_op=True))

    def in_step(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield from ``batches`` until some rank has no further batch. Each batch costs a small all-reduce.

        Partitions differ in length. Without this, ranks with more batches would wait for the others in vain.
        """
        for batch in batches:
            if not self._all_ranks_have_batch(True):
                return
            yield batch
        self._all_ranks_have_batch(False)

    def _all_ranks_have_batch(self, has_batch: bool) -> bool:
        return bool(self.all_reduce(torch.tensor(int(has_batch), device=self.device), "min").item())

    def _group_for(self, operation: Operation, tensor: torch.Tensor) -> CollectiveGroup | None:
        """Return the group that runs the operation; None to use torch.distributed.

        All ranks get the same answer, because their tensors have the same shape and dtype.
        """
        if self._algorithm is None or tensor.device != self.device or not tensor.is_contiguous():
            return None
        if tensor.is_complex() or tensor.dtype is torch.bool:
            return None
        group = self.collectives(self._algorithm)
        return group if group.supports(operation) else None

    @functools.cached_property
    def _algorithm(self) -> str | None:
        """Algorithm of this package that runs collectives; None to use torch.distributed for all of them.

        An algorithm that fits the whole gang may not fit a split of it.
        """
        algorithm, is_part = self._conf.strategy, bool(self._ranks.name)
        if is_part and algorithm in ALGORITHMS:
            topology = topology_of(self._ranks, self._conf.topology).topology
            return None if ALGORITHMS[algorithm].why_ineligible(topology) else algorithm
        return CHEAPEST if algorithm in (AUTO, CHEAPEST) else algorithm if algorithm in ALGORITHMS else None

    def _torch_group(self) -> dist.ProcessGroup | None:
        """Return torch's process group of these ranks, created on first use; None for the default group."""
        if self._ranks.name and self._process_group is None:
            self._process_group = process_group_of(self._ranks.ranks, self._timeout)
        return self._process_group

    def _start(self, name: str, start: Callable[[], Work[torch.Tensor]]) -> Work[torch.Tensor]:
        """Start a collective of this package. Its Work waits at most ``spark.sparkdl.comm.timeout``."""
        with _translate_torch_errors(name, self._gang, self._timeout):
            return start().map(lambda result: result, timeout=self._timeout)

    def _start_torch(self, name: str, result: T, start: Callable[[], Any]) -> Work[T]:
        with _translate_torch_errors(name, self._gang, self._timeout):
            work = start()
        return _TorchWork(name, self._gang, self._timeout, work, result)


class _TorchWork(Work[T]):
    """Collective that torch.distributed runs, with its ``result``. ``work``: torch's own Work."""

    def __init__(self, name: str, gang: Gang, timeout: float, work: Any, result: T) -> None:
        super().__init__(name, timeout)
        self._gang, self._work, self._result = gang, work, result

    @property
    def is_over(self) -> bool:
        return self._ended.is_set() or bool(self._work.is_completed())

    def wait(self, timeout: float | None = None) -> T:
        """Wait for the collective and return its result.

        :raises DeadlineError: the other ranks did not take part in time.
        :raises SparkdlCommError: the gang's failure, if a rank failed meanwhile.
        """
        seconds = self._timeout if timeout is None else timeout
        assert seconds is not None, "the constructor sets a time limit"
        with _translate_torch_errors(self.name, self._gang, seconds):
            self._work.wait(datetime.timedelta(seconds=seconds))
        result: T = self._result
        return result

    def then(self, callback: Callable[[Work[T]], object]) -> None:
        def on_end(future: torch.futures.Future[Any]) -> None:
            try:
                future.value()
            except RuntimeError as error:
                self._error = error
            self._ended.set()  # torch may complete the future before its Work says so
            callback(self)

        self._work.get_future().add_done_callback(on_end)


@contextmanager
def _translate_torch_errors(name: str, gang: Gang, seconds: float) -> Iterator[None]:
    """Turn torch's errors into this package's: the gang's failure if there is one, else DeadlineError for a time-out."""
    try:
        yield
    except SparkdlCommError:
        raise
    except RuntimeError as exc:
        gang.check(VERDICT_SECONDS)
        if not is_peer_late(exc):
            raise
        raise DeadlineError(
            f"rank {gang.rank} waited {seconds:g} s for the others in {name}; set {TIMEOUT_KEY}",
            rank=gang.rank,
            phase=name,
        ) from exc


@contextmanager
def install(communicator: Communicator) -> Iterator[Communicator]:
    """Make :meth:`Communicator.current` return ``communicator`` within the context; close it at the end."""
    global _current
    _current = communicator
    try:
        yield communicator
    finally:
        _current = None
        communicator.close()


def _reduce_op(name: str) -> Any:
    if name not in _REDUCE_OPS:
        raise InputError(f"op={name!r}: there are {', '.join(_REDUCE_OPS)}")
    return _REDUCE_OPS[name]
