"""Strategy ps: a synchronous parameter server in Spark's BlockManager. Every executor is the server of one shard.

Steps of an iteration (iBatch). All but the optimizer run in the executor's JVM. Layers travel in buckets, which the iBatch
paper calls batches; policy ``whole`` has one bucket.

1. Pull: fetch the shards of the other N-1 servers in parallel. Each rank receives (N-1)/N of the model's bytes.
2. Forward (Python): a layer waits until its bucket has arrived.
3. Backward (Python) and push: each server fetches its shard's gradients from the other N-1 ranks, a bucket as soon as backward
   has made it. Each rank again receives (N-1)/N of the model's bytes.
4. Aggregate: the server sums the gradients in rank order.
5. Update (Python): the user's optimizer updates this shard, each bucket as soon as it is summed.
6. Publish the shard as the next version, each bucket as soon as it is updated. The pulls of that version can then begin.

With several buckets, steps 4 to 6 and the next pull do not wait for the end of backward. The last layers go through them while
the gradients of the first layers are still computed. This takes memory for two versions of the parameters.

A server's part of a bucket is one block, and so is the part of a rank's gradients for one server. Blocks of at most 64 KiB are
not fetched: they travel inside the notice of their availability.

On a CPU, parameters and gradients are views of memory that the JVM serves and fetches in place. On a GPU, a rank computes on
its device and copies through that memory, which is pinned; its gradients travel after backward.

With compression, only the largest elements of each layer are pushed and summed (``bucket_transfers.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ModelError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.jvm.session import PsSession
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.optim.parallel import GangRanks
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.parameter_space import Countdown
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.ps.adaptive_buckets import AdaptiveBuckets
from sparkdl_comm.strategies.ps.bucket_transfers import BatchTrace, ParameterPulls, ShardSums, SparsePushes, WholePushes
from sparkdl_comm.strategies.ps.memory import ParameterMemory


class ParameterServer(Strategy):
    """Strategy ps on one rank, which is also the server of one shard. The module lists the steps of an iteration."""

    needs_plugin = True
    is_sharded = True
    has_stripes = True
    can_compress = True

    _session: PsSession | None = None
    _memory: ParameterMemory | None = None

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        SparsePushes.check(conf.compression)

    def advertise(self, attempt_id: str, rank: int) -> dict[str, Any]:
        self._session = PsSession(self.conf.timeout)
        # 62 bits with the top bit set: a positive long for the JVM, far above the ids of Spark's broadcasts.
        return self._session.hello((int(attempt_id, 16) + 4 * self.number >> 2) % (1 << 61) | 1 << 61, rank)

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        self._gang, self._model, self._on_gpu = gang, model, model.device.type == "cuda"
        compression = self.conf.compression.method
        self._needs_all_gradients = make_optimizer.needs_all_gradients
        layout = self._jvm.open(
            [member.payload["strategy"] for member in gang.members],
            [layer.count for layer in model.layers],
            self.conf.ps,
            density=None if compression is None else compression.density,
            can_pull_ahead=not self._on_gpu and not self._needs_all_gradients,
            timeout=self.conf.timeout,
        )
        self._can_pull_ahead = layout["ahead"]
        self._memory = memory = ParameterMemory(layout, model)
        self._buckets = AdaptiveBuckets(self._jvm, gang, layout, self.conf.ps.profile_iterations, self.conf.timeout)
        self._push_buckets = self._next_push_buckets = self._buckets.pushes
        self._jvm.attach(memory.path)
        memory.bind()
        self._push_encoder = (
            WholePushes()
            if compression is None
            else SparsePushes(self.conf.compression, gang.rank, model, memory.gradients)
        )
        self._shard = memory.make_shard(make_optimizer, GangRanks(gang, self.conf.timeout))
        self.optimizer = self._shard.optimizer
        # The host cannot time layers on a GPU, so policies that need a profile keep one bucket.
        self._profiler = None if self._on_gpu else self._buckets.profiler
        self._bucket_trace = BatchTrace(self.trace)
        self._sums = ShardSums(self._jvm, self.watch, self._bucket_trace)
        self._pulls = ParameterPulls(
            self._jvm,
            model,
            memory,
            self._buckets.pulls,
            on_gpu=self._on_gpu,
            watch=self.watch,
            trace=self._bucket_trace,
        )
        # All ranks have the same initial values. If the wire rounds values, the first version must be pulled.
        self.has_rounded_parameters = self.conf.ps.wire != "fp32"
        self._begin_version(0, is_in_place=not self.has_rounded_parameters)
        if self.has_rounded_parameters:
            self._pulls.prefetch(0)
            self._jvm.publish(0, range(len(self._pulls.buckets)))

    def begin_step(self) -> None:
        self._push_encoder.begin_step(self.step_info)
        self._bucket_trace.is_between_iterations = False
        self._pushed = [False] * len(self._push_buckets)
        self._sums.begin_step(self._version, self._push_buckets)
        self._publish_countdown: Countdown | None = None
        if self._profiler is not None:
            self._profiler.begin_iteration(self.watch.seconds["update"])
        #: Profiler of this step's layers; None if it measures none of them.
        self._layer_profiler = self._profiler if self._buckets.is_measured(self._version + 1) else None
        self._pulls.begin_step(self._layer_profiler)

    def before_forward(self) -> None:
        self._pulls.wait()

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        return self._pulls.forward()

    @contextlib.contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        self._bucket_trace.begin(self._push_buckets)
        if not last or self._on_gpu or (len(self._push_buckets) == 1 and self._layer_profiler is None):
            yield
            self._bucket_trace.add_pass_span("backward batch", len(self._push_buckets))
            return
        self._seen_gradients: set[int] = set()
        self._push_countdown = Countdown(self._push_buckets, self._model.layer_of_each)
        if self._layer_profiler is not None:
            self._layer_profiler.backward.begin()
        with self._model.listen(self._on_gradient):
            yield
        self._bucket_trace.add_pass_span("backward batch", len(self._push_buckets))
        if self._layer_profiler is not None:
            self._layer_profiler.backward.end()

    def after_backward(self) -> None:
        if self._on_gpu:
            with self.watch.phase("push"):
                self._shared.gradients.copy_(self._model.gradients)
        for bucket, pushed in enumerate(self._pushed):
            if not pushed:
                self._push(bucket)
        if self._buckets.is_due(self._version + 1):
            self._replan()
        self._pulls.prefetch(self._version + 1)
        if len(self._push_buckets) == 1 or self._needs_all_gradients:
            self._sums.collect_all()

    def gradients(self) -> list[torch.Tensor]:
        self._sums.collect_all()
        return self._shard.gradients

    def update(self, apply: bool = True) -> None:
        with self.watch.phase("update"):
            if self._publish_countdown is None and self._sums.is_complete:
                self._bucket_trace.begin(self._push_buckets)
                if apply:
                    self._shard.step()
                self._bucket_trace.add_pass_span("update batch", len(self._push_buckets))
                self._jvm.publish(self._version + 1, range(len(self._pulls.buckets)))
            while not self._sums.is_complete:
                self._update_next(apply)
        self._push_encoder.end_step(apply)
        self._begin_version(self._version + 1)
        self._push_buckets = self._next_push_buckets
        self._shared.use_version(self._version)
        self._bucket_trace.is_between_iterations = True

    def stripes(self) -> list[tuple[int, torch.nn.Parameter]]:
        return self._shard.stripes

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return self._shard.owned

    def details(self) -> dict[str, Any]:
        return {"batching": self._jvm.get_plan()} if self._gang.rank == 0 else {}

    def state(self) -> dict[str, Any]:
        return self._push_encoder.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self._push_encoder.load_state(state)

    def finish(self) -> None:
        self._pulls.wait()
        # Other ranks may still be fetching this rank's last blocks.
        store = self._gang.store(f"ps {self.number}")
        if store.add("finished", 1) == self._gang.world:
            store.set("all finished", b"1")
        store.wait(["all finished"])
        self._jvm.end()

    def abort(self) -> None:
        if self._session is not None:
            self._session.abort()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    @property
    def _jvm(self) -> PsSession:
        assert self._session is not None, "advertise comes first"
        return self._session

    @property
    def _shared(self) -> ParameterMemory:
        assert self._memory is not None, "join comes first"
        return self._memory

    def _begin_version(self, version: int, is_in_place: bool = False) -> None:
        """Begin ``version``. ``is_in_place``: True if its parameters are in place and need no pull."""
        self._version = version
        #: True if the next version may be made and pulled during this step. It may not if its buckets may change.
        self._can_make_next_early = self._can_pull_ahead and not self._buckets.is_due(version + 1)
        self._pulls.begin_version(version, can_prefetch_next=self._can_make_next_early, is_in_place=is_in_place)

    def _replan(self) -> None:
        """Get the next step's buckets. This step's gradients keep their buckets."""
        with self.watch.phase("push"):
            planned = self._buckets.replan()
        if planned:
            self._pulls.buckets, self._next_push_buckets = self._buckets.pulls, self._buckets.pushes
            self._jvm.change_buckets(self._pulls.buckets, self._next_push_buckets)

    def _on_gradient(self, number: int) -> None:
        """Push the bucket that the gradient of parameter ``number`` completes. Called during backward."""
        layer = self._model.layer_of_each[number]
        if self._layer_profiler is not None:
            self._layer_profiler.backward.record_layer(layer)
        if number not in self._seen_gradients:
            self._seen_gradients.add(number)
            complete = self._push_countdown.arrived(layer)
            if complete is not None:
                self._bucket_trace.add_pass_span("backward batch", complete + 1)
                if len(self._push_buckets) > 1:
                    self._push(complete)
            if self._can_make_next_early:
                self._update_summed_buckets()
        elif len(self._push_buckets) == 1:
            assert self._layer_profiler is not None, "else nobody listens"
            self._layer_profiler.has_rounds = True
        else:
            raise ModelError(
                f"backward makes the gradient of a parameter of layer {self._model.layers[layer].name!r} in several rounds,"
                " as re-entrant checkpointing of a layer that is used twice does. Only the first would be sent. Pass"
                " use_reentrant=False to torch.utils.checkpoint, or set spark.sparkdl.comm.ps.pushBatching=whole."
            )

    def _push(self, bucket: int) -> None:
        if self._push_encoder.compress(self._push_buckets.layers[bucket]) and self._layer_profiler is not None:
            self._layer_profiler.backward.skip()
        self._jvm.push(self._version, bucket)
        self._pushed[bucket] = True

    def _update_summed_buckets(self) -> None:
        """Update all buckets that are already summed. Called during backward; does not wait."""
        summed = self._shared.count_summed(self._version)
        if summed <= self._sums.collected:
            return
        with self.watch.phase("update"):
            while self._sums.collected < summed:
                self._update_next(apply=True)
        if self._layer_profiler is not None:
            self._layer_profiler.backward.skip()

    def _update_next(self, apply: bool) -> None:
        """Wait for the sum of the next bucket of gradients, and update its layers.

        Publish each bucket of parameters whose layers are all updated.
        """
        if self._publish_countdown is None:
            self._publish_countdown = Countdown(self._pulls.buckets, range(len(self._model.layers)))
        layers = self._push_buckets.layers[self._sums.collected]
        self._sums.collect()
        with self._bucket_trace.span("update batch", self._push_buckets, self._sums.collected - 1):
            if apply:
                self._shard.step_range(self._model.stretch(layers))
        complete = [self._publish_countdown.arrived(layer) for layer in layers]
        self._jvm.publish(self._version + 1, sorted(bucket for bucket in complete if bucket is not None))
