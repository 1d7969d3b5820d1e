"""Strategies that exchange gradients by this package's collectives: one for each algorithm, and ``cheapest``.

``spark.sparkdl.comm.collective.loop`` sets the training loop. The first three are those of the linear-pipeline paper:

1. ``root-overlap`` (Algorithm 1) and ``root`` (Algorithm 2), in ``overlapped.py``.
2. ``all-reduce`` (Algorithm 3), in this module: gradients are all-reduced during backward, and every rank takes the whole
   optimizer step. If ``collective.resync`` is not 0, rank 0 broadcasts its parameters after that many steps.
3. ``decoupled``, in ``overlapped.py``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.discover import parse_configured
from sparkdl_comm.collectives.group import CollectiveGroup, check_fits
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.collectives.work import Work
from sparkdl_comm.conf import PREFIX, CommConf, Compression
from sparkdl_comm.conf.strategy import CHEAPEST, loop_name
from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.process_group import default_group
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import ReplicatedStrategy, Strategy
from sparkdl_comm.strategies.exchange import BucketExchange, CollectiveExchange
from sparkdl_comm.strategies.registry import load_class

if TYPE_CHECKING:
    from sparkdl_comm.compress.feedback import RangeFactory
    from sparkdl_comm.compress.sums import CompressedSum, Sparsifier


@dataclass(eq=False)
class _Bucket:
    """Elements ``start`` to ``stop`` of the flat vector.

    :param owners: numbers of the parameters in the bucket.
    :param missing: those whose gradients backward has not made yet.
    :param has_repeats: backward makes the gradient of an owner several times, so the bucket is complete only at its end.
    """

    start: int
    stop: int
    owners: list[int]
    missing: set[int] = field(default_factory=set)
    has_repeats: bool = False


class GradientBuckets:
    """Sender of the gradient's buckets: it calls ``send(start, stop)`` as soon as backward has completed a bucket.

    Buckets are sent in the given order on all ranks, even if gradients are missing on some. So give them from the end
    of the vector to its beginning, about the order of backward.

    Re-entrant checkpointing of a layer that is used twice makes its gradients in several rounds of one backward pass.
    This cannot be known in advance. So the first backward pass sends nothing, and records for which parameters it
    happens.
    """

    def __init__(self, model: FlatModel, parts: Sequence[tuple[int, int]], send: Callable[[int, int], None]) -> None:
        """Create the buckets. ``model`` is bound.

        :param parts: (first element, end) of each bucket. They end where parameters end, and cover the whole vector.
        """
        self._model, self._send = model, send
        self._buckets: list[_Bucket] = []
        self._sent = 0
        self._seen_backward = False
        self._bucket_of: dict[int, _Bucket] = {}
        for start, stop in parts:
            owners = [piece.number for piece in model.cut(start, stop - start)]
            self._buckets.append(_Bucket(start, stop, owners))
            self._bucket_of |= dict.fromkeys(owners, self._buckets[-1])
        self._begin()

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """(start, stop) of the buckets, in the order in which they are sent."""
        return [(bucket.start, bucket.stop) for bucket in self._buckets]

    @contextlib.contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        """Observe a backward pass, as a context. Only in the ``last`` pass of a step is a gradient complete when it is
        made.
        """
        if not last:
            yield
            return
        with self._model.listen(self._on_gradient):
            yield
        self._seen_backward = True

    def flush(self) -> None:
        """Send the remaining buckets: all gradients are complete, perhaps zero. The next backward pass belongs to
        another step.
        """
        for bucket in self._buckets[self._sent :]:
            self._send(bucket.start, bucket.stop)
        self._begin()

    def _begin(self) -> None:
        self._sent = 0
        for bucket in self._buckets:
            bucket.missing = set(bucket.owners)

    def _on_gradient(self, number: int) -> None:
        bucket = self._bucket_of[number]
        if number not in bucket.missing:
            self._on_repeated_gradient(bucket)
        bucket.missing.discard(number)
        while self._seen_backward and self._sent < len(self._buckets):
            first = self._buckets[self._sent]
            if first.missing or first.has_repeats:
                break
            self._sent += 1
            self._send(first.start, first.stop)

    def _on_repeated_gradient(self, bucket: _Bucket) -> None:
        bucket.has_repeats = True
        if bucket in self._buckets[: self._sent]:
            raise ModelError(
                "backward made a gradient a second time after it was sent. It did not do so in the first step (re-entrant"
                " checkpointing of a layer that is used several times in some steps only?). Pass use_reentrant=False to"
                " torch.utils.checkpoint."
            )


class CollectiveStrategy(Strategy):
    """Base class of all loops: a collective group that runs ``algorithm``, buckets of gradients, and their exchange."""

    algorithm = CHEAPEST

    #: Buckets of the flat vector as (first element, end), the last one first. None: cut by ``collective.bucket``.
    parts: Sequence[tuple[int, int]] | None = None

    _nccl: dist.ProcessGroup | None = None

    def __init__(self, conf: CommConf) -> None:
        super().__init__(conf)
        self._resources: list[CollectiveGroup | BucketExchange] = []

    @classmethod
    def full_name(cls, conf: CommConf) -> str:
        return loop_name(conf.strategy, conf.collective.loop, conf.collective.batching)

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        if conf.topology:
            check_fits(cls.algorithm, parse_configured(conf.topology, world, len(conf.rails) or 1))

    def abort(self) -> None:
        """Do nothing: the group watches the gang's failures itself."""

    def close(self) -> None:
        for resource in self._resources:
            resource.close()
        if self._nccl is not None:
            self._nccl = None
            dist.destroy_process_group()

    @classmethod
    def _check_operations(cls, key: str, value: object, *operations: Operation) -> None:
        """Raise ConfError if the algorithm lacks an operation that setting ``key`` needs."""
        if cls.algorithm == CHEAPEST:
            return
        missing = set(operations) - set(ALGORITHMS[cls.algorithm].operations)
        if missing:
            capable = [a.name for a in ALGORITHMS.values() if set(operations) <= set(a.operations)]
            raise ConfError(
                f"{PREFIX}{key}={value}: strategy {cls.algorithm} does no {', '.join(sorted(missing))};"
                f" {', '.join(capable)} do"
            )

    def _form_group(self, gang: Gang, model: FlatModel, operation: Operation) -> None:
        """Make the group and the buckets of gradients, which ``operation`` exchanges. The model must be bound before."""
        self._gang, self._model = gang, model
        device = model.gradients.device
        if device.type == "cuda" and not dist.is_initialized():
            self._nccl = default_group("nccl", gang, self.conf.timeout)
        self._group = CollectiveGroup(gang, self.algorithm, self.conf, device)
        self._resources.append(self._group)
        #: Exchanges of this step's buckets that have begun, in the order of the buckets.
        self._pending: list[Work[Any]] = []
        parts = self.parts or model.buckets(self.conf.collective.bucket / model.gradients.element_size())
        self._buckets = GradientBuckets(model, parts, self._send)
        self._exchange = self._make_exchange(model.gradients, operation)
        self._resources.append(self._exchange)
        self._exchange.prepare(self._buckets.ranges)

    def _make_exchange(self, vector: torch.Tensor, operation: Operation) -> BucketExchange:
        """Return the exchange for buckets of ``vector``, the flat gradients or the flat parameters."""
        return CollectiveExchange(self._group, operation, vector, self.watch)

    def backward(self, last: bool) -> contextlib.AbstractContextManager[None]:
        return self._buckets.backward(last)

    def after_backward(self) -> None:
        with self.watch.phase("push"):
            self._buckets.flush()
            pending, self._pending = self._pending, []
            for work in pending:
                work.wait()

    def state(self) -> dict[str, Any]:
        return self._exchange.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self._exchange.load_state(state)

    def details(self) -> dict[str, Any]:
        return self._exchange.details()

    def _send(self, start: int, stop: int) -> None:
        self._pending.append(self._exchange.start(start, stop))


class CollectiveAllReduce(CollectiveStrategy, ReplicatedStrategy):
    """Strategy that all-reduces gradients.

    Steps: during backward, each bucket of gradients is all-reduced (sum) as soon as it is ready; every rank then takes the
    whole optimizer step. With compression, the largest elements of each bucket are all-gathered, or low-rank factors are
    all-reduced.
    """

    can_compress = True

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        super().check(conf, world)
        if conf.compression.method is not None:
            cls._check_operations(
                "compression", conf.compression.method, "all_reduce" if conf.compression.method.rank else "all_gather"
            )
        if conf.collective.resync:
            cls._check_operations("collective.resync", conf.collective.resync, "broadcast")

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        super().join(gang, model, make_optimizer)
        if self.compression is not None and self._sparse:
            raise ModelError(
                f"{PREFIX}compression={self.compression} does not send which rows of a sparse Embedding a step used, but"
                f" optimizer {type(self.optimizer).__name__} updates only these. Set sparse=False, or no compression."
            )
        self._form_group(gang, model, "all_reduce")
        self._resync = self._make_exchange(model.values, "broadcast")
        self._steps = 0

    def begin_step(self) -> None:
        super().begin_step()
        self._exchange.begin_step(self.step_info)

    def update(self, apply: bool = True) -> None:
        super().update(apply)
        self._exchange.end_step(apply)
        self._steps += 1
        if self.conf.collective.resync and self._steps % self.conf.collective.resync == 0:
            with self.watch.phase("pull"):
                self._resync.start(0, self._model.count).wait()

    def finish(self) -> None:
        """Do nothing: the last step ended with all-reduces, so all ranks have its parameters."""

    @property
    def compression(self) -> Compression | None:
        """Compression of the gradients; None: they are sent whole."""
        return self.conf.compression.method

    def _make_exchange(self, vector: torch.Tensor, operation: Operation) -> BucketExchange:
        if operation == "broadcast" or self.compression is None:
            return super()._make_exchange(vector, operation)
        from sparkdl_comm.compress.feedback import FlatRange
        from sparkdl_comm.strategies.compressed_exchange import CompressedExchange

        bounds = [entry.start for entry in self._model.entries]
        part_of = functools.cache(lambda start, stop: FlatRange.of(start, stop, bounds))
        compressed = self._compressed_sum(self.compression, part_of)
        kind: Callable[..., BucketExchange] = CompressedExchange
        if self.conf.compression.schedule.auto:
            kind = functools.partial(load_class("autotune.compression_trial:TrialExchange"), self._gang)
        return kind(compressed, self.compression, self.conf, self._group, operation, vector, self.watch)

    def _compressed_sum(self, compression: Compression, part_of: RangeFactory) -> CompressedSum:
        from sparkdl_comm.compress.powersgd import PowerSgd
        from sparkdl_comm.compress.sums import NaiveAllGather

        if compression.rank:
            shapes = {entry.start: entry.shape for entry in self._model.entries}
            return PowerSgd(compression.rank, shapes, part_of, self._group, self._gang.world)
        return NaiveAllGather(self._sparsifier(compression), part_of, self._group, self._gang.world)

    def _sparsifier(self, compression: Compression) -> Sparsifier:
        from sparkdl_comm.compress.sums import Sparsifier

        span = contextlib.nullcontext if self.trace is None else functools.partial(self.trace.span, "compress")
        return Sparsifier.of(compression, self.conf.compression, self._gang.rank, span)
