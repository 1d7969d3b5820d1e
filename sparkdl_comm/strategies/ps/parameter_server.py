"""Strategy ps: a synchronous parameter server in Spark's BlockManager, every executor the server of one shard.

Steps of an iteration, in the executor's JVM but for the optimizer (spec: iBatch). Layers travel in batches, of which policy
``whole`` has one:

1. pull: fetch the shards of the other N-1 servers, all at once; (N-1)/N of the model's bytes into each rank;
2. forward, here: a layer waits until its batch is there;
3. backward, here; push: each server fetches its shard's gradients from the other N-1 ranks, a batch as soon as backward has
   made it; as many bytes again;
4. aggregate: the server adds them up, in the order of the ranks;
5. update: the user's optimizer on this shard alone, here, on each batch that is added up;
6. publish the shard as the next version, each batch as soon as it is updated; the pulls of that version begin at once.

Where layers travel in batches, steps 4 to 6 and the next pull do not wait for the end of backward: those of the last layers
go on while the gradients of the first ones are still computed. That takes memory for two versions of the parameters.

What a server has of a batch, or a rank for a server, is one block. Those up to 64 KiB need no fetch: they travel inside of the
notice that they are there.

Parameters and gradients of a CPU rank are views of memory that the JVM serves and fetches in place. A GPU rank computes on
its device and copies through that memory, pinned; its gradients travel after backward.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from sparkdl_comm.errors import ModelError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.space.cut import Countdown
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.wait_on_use import WaitOnUse, can_wait_on_use
from sparkdl_comm.strategies.base import Strategy, register
from sparkdl_comm.strategies.ps.batching import Batching, policies
from sparkdl_comm.strategies.ps.bridge import PROTOCOL, Bridge
from sparkdl_comm.strategies.ps.memory import ParameterMemory
from sparkdl_comm.strategies.trace import BatchTrace


class ParameterServer(Strategy):
    needs_plugin = True
    sharded = True
    cuts_tensors = True

    _bridge: Bridge | None = None
    _memory: ParameterMemory | None = None

    def advertise(self, epoch_id: str, rank: int) -> dict[str, Any]:
        self._bridge = Bridge.of_this_executor(self.conf.timeout)
        # 62 bits: a job id is a positive long for the JVM, far from the ids that Spark gives to its broadcasts.
        job = int(epoch_id, 16) >> 2 | 1 << 61
        answer = self._bridge.request("hello", protocol=PROTOCOL, job=job, rank=rank)
        del answer["ok"]
        return answer

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        self._gang, self._model = gang, model
        self._on_gpu = next(model.module.parameters()).device.type == "cuda"
        policy = policies(self.conf)
        self._cuts_pushes = policy["push"] != "whole"
        batched = "whole" not in policy.values()
        self._ahead = batched and not self._on_gpu and not make_optimizer.judges_gradients
        answer = self._request(
            "open",
            peers=[member.payload["strategy"] for member in gang.members],
            layers=[layer.count for layer in model.layers],
            wire=self.conf.ps_wire,
            ahead=self._ahead,
            timeout=self.conf.timeout,
        )
        self._memory = memory = ParameterMemory(answer, model)
        planner = functools.partial(self._request, "plan")
        self._batching = Batching(self.conf, model, gang, planner, ahead=self._ahead, fetch_above=answer["fetch_above"])
        self._pulls, self._pushes = self._batching.pulls, self._batching.pushes
        self._next_pushes = self._pushes
        try:
            self._request("attach", path=memory.path, pull=self._pulls.pairs, push=self._pushes.pairs)
        finally:
            memory.detach()
        memory.bind()
        self._shard = memory.shard(make_optimizer)
        self.optimizer = self._shard.optimizer
        self._wait_on_use = WaitOnUse(model, self._need, self._open) if can_wait_on_use(model.module) else None
        # A GPU computes behind the host's back: what needs a profile stays at one batch.
        self._profiler = None if self._on_gpu else self._batching.profiler
        self._batch_trace = BatchTrace(self.trace)
        self._begin_version(0)
        self._wanted = 0
        # All ranks begin with the same values (the gang compared fingerprints), unless the wire rounds them.
        self._pulled = len(self._pulls)
        if self.conf.ps_wire != "fp32":
            self._pulled = 0
            self._prefetch(0)
            self._publish(0, range(len(self._pulls)))

    def begin_step(self) -> None:
        self._batch_trace.between = False
        self._pushed = [False] * len(self._pushes)
        self._collected = 0
        self._unpublished: Countdown | None = None
        self._used: set[int] = set()
        self._measuring = self._profiler is not None
        if self._profiler is not None:
            self._profiler.iteration()
        if self._wait_on_use is None or len(self._pulls) == 1:
            self.before_forward()

    def before_forward(self) -> None:
        if not self._all_pulled():
            self._pull(len(self._pulls) - 1)

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        self._batch_trace.begin(self._pulls)
        if self._wait_on_use is None or self._open():
            yield
            self._batch_trace.done("forward batch", len(self._pulls))
            return
        if self._profiler is not None:
            self._profiler.forward.begin()
        with self._wait_on_use:
            yield
        if self._profiler is not None:
            self._profiler.forward.end()
            self._measuring = False  # a step's other passes do not wait for parameters
        self._batch_trace.done("forward batch", len(self._pulls))
        self.before_forward()

    @contextlib.contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        self._batch_trace.begin(self._pushes)
        if not last or self._on_gpu or (len(self._pushes) == 1 and self._profiler is None):
            yield
            self._batch_trace.done("backward batch", len(self._pushes))
            return
        self._ready: set[int] = set()
        self._awaited = Countdown(self._pushes, self._model.layer_of_each)
        if self._profiler is not None:
            self._profiler.backward.begin()
        self._model.on_gradient = self._on_gradient
        try:
            yield
        finally:
            self._model.on_gradient = None
        self._batch_trace.done("backward batch", len(self._pushes))
        if self._profiler is not None:
            self._profiler.backward.end()

    def after_backward(self) -> None:
        self.before_forward()  # a rank without rows in this step had no forward
        if self._on_gpu:
            with self.watch.phase("push"):
                self._shared.gradients.copy_(self._model.gradients)
        for batch, pushed in enumerate(self._pushed):
            if not pushed:
                self._push(batch)
        if self._batching.due(self._version + 1):
            self._replan()
        if self._wanted == self._version:
            self._prefetch(self._version + 1)
        if len(self._pushes) == 1 or not self._shard.in_parts:
            self._collect_all()

    def gradients(self) -> list[torch.Tensor]:
        self._collect_all()
        return self._shard.gradients

    def update(self, apply: bool = True) -> None:
        with self.watch.phase("update"):
            if self._unpublished is None and self._collected == len(self._pushes):
                self._batch_trace.begin(self._pushes)
                if apply:
                    self._shard.step()
                self._batch_trace.done("update batch", len(self._pushes))
                self._publish(self._version + 1, range(len(self._pulls)))
            while self._collected < len(self._pushes):
                self._update_next(apply)
        self._begin_version(self._version + 1)
        self._pulled = 0
        self._pushes = self._next_pushes
        self._shared.turn(self._version)
        self._batch_trace.between = True

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return self._shard.owned

    def details(self) -> dict[str, Any]:
        return {"batching": self._batching.report()}

    def finish(self) -> None:
        self.before_forward()
        # The others may still be fetching this rank's last blocks.
        store = self._gang.store("ps")
        if store.add("finished", 1) == self._gang.world:
            store.set("all finished", b"1")
        store.wait(["all finished"])
        self._request("close")

    def abort(self) -> None:
        if self._bridge is not None:
            self._bridge.abort()

    def close(self) -> None:
        if self._bridge is not None:
            # After a failure this ends the session in the JVM, which retires its blocks and unmaps the segment.
            self._bridge.close()
            self._bridge = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    @property
    def _shared(self) -> ParameterMemory:
        assert self._memory is not None, "join comes first"
        return self._memory

    def _begin_version(self, version: int) -> None:
        self._version = version
        #: Whether the next version may be made, and pulled, while this one is computed with: not if its batches are others.
        self._early = self._ahead and self._shard.in_parts and not self._batching.due(version + 1)

    def _replan(self) -> None:
        """The next step's batches may be others; this step's gradients still travel in those they have."""
        with self.watch.phase("push"):
            planned = self._batching.replan()
        if planned is not None:
            self._pulls, self._next_pushes = planned
            self._defer("cut", pull=self._pulls.pairs, push=self._next_pushes.pairs)

    def _prefetch(self, version: int) -> None:
        """Parameters of `version` may arrive from now on."""
        self._defer("prefetch", version=version)
        self._wanted = version

    def _all_pulled(self) -> bool:
        return self._pulled == len(self._pulls)

    def _open(self) -> bool:
        """Whether nobody has to know any more which layer forward uses."""
        return self._all_pulled() and not self._measuring

    def _need(self, layer: int) -> None:
        """Forward is about to use this layer."""
        if layer in self._used:
            return
        self._used.add(layer)
        if self._profiler is not None:
            self._profiler.forward.stop()
        if self._pulls.of[layer] >= self._pulled:
            self._pull(self._pulls.of[layer])
        if self._profiler is not None:
            self._profiler.forward.at(layer)

    def _pull(self, batch: int) -> None:
        """Waits for the parameters up to those of `batch`."""
        self._batch_trace.done("forward batch", self._pulled)
        with self.watch.phase("pull"):
            answer = self._request("pull", version=self._version, batch=batch)
            if self._on_gpu:
                for layers in self._pulls.layers[self._pulled : batch + 1]:
                    stretch = self._model.stretch(layers)
                    self._model.values[stretch].copy_(self._shared.values[stretch], non_blocking=True)
        self._batch_trace.came("pull batch", self._pulls, self._pulled, answer["batches"])
        self._batch_trace.go_on()
        self._pulled = batch + 1
        self.watch.bytes["pull"] += answer["bytes"]
        if self._profiler is not None:
            self._profiler.pulls.add(answer["batches"])
            if self._all_pulled():
                self._profiler.pulls.end()
        if self._all_pulled() and self._early:
            self._prefetch(self._version + 1)

    def _on_gradient(self, number: int) -> None:
        """Backward has made the gradient of a parameter."""
        layer = self._model.layer_of_each[number]
        if self._profiler is not None:
            self._profiler.backward.was(layer)
        if number not in self._ready:
            self._ready.add(number)
            complete = self._awaited.arrived(layer)
            if complete is not None:
                self._batch_trace.done("backward batch", complete + 1)
                self._push(complete)
            if self._early:
                self._update_what_is_summed()
        elif self._cuts_pushes:
            raise ModelError(
                f"backward makes the gradient of a parameter of layer {self._model.layers[layer].name!r} in several rounds,"
                " and would have sent the first (re-entrant checkpointing of a layer that is used twice?): pass"
                " use_reentrant=False to torch.utils.checkpoint, or set spark.sparkdl.comm.ps.pushBatching=whole"
            )

    def _push(self, batch: int) -> None:
        self._post("push", version=self._version, batch=batch)
        self._pushed[batch] = True

    def _collect_all(self) -> None:
        while self._collected < len(self._pushes):
            self._collect()

    def _collect(self) -> None:
        """Waits for the sum of the next batch's gradients."""
        with self.watch.phase("push"):
            answer = self._request("collect", version=self._version, batch=self._collected)
        self._batch_trace.collected(self._pushes, self._collected, answer)
        self._collected += 1
        self.watch.seconds["push"] -= answer["aggregate_seconds"]
        self.watch.seconds["aggregate"] += answer["aggregate_seconds"]
        self.watch.bytes["push"] += answer["bytes"]
        if self._profiler is not None:
            self._profiler.pushes.add(answer["batches"])
            if self._collected == len(self._pushes):
                self._profiler.pushes.end()

    def _publish(self, version: int, batches: Iterable[int]) -> None:
        for batch in batches:
            self._post("publish", version=version, batch=batch)

    def _update_what_is_summed(self) -> None:
        """In the backward pass: does not wait."""
        summed = self._shared.summed(self._version)
        if summed <= self._collected:
            return
        with self.watch.phase("update"):
            while self._collected < summed:
                self._update_next(apply=True)
        if self._profiler is not None:
            self._profiler.backward.skip()

    def _update_next(self, apply: bool) -> None:
        """The optimizer's step on the next batch of gradients as soon as its sum is there; a batch of parameters is
        published as soon as all its layers are updated."""
        if self._unpublished is None:
            self._unpublished = Countdown(self._pulls, range(len(self._model.layers)))
        layers = self._pushes.layers[self._collected]
        self._collect()
        with self._batch_trace.one("update batch", self._pushes, self._collected - 1):
            if apply:
                self._shard.step_layers(layers)
        complete = [self._unpublished.arrived(layer) for layer in layers]
        self._publish(self._version + 1, sorted(batch for batch in complete if batch is not None))

    def _post(self, op: str, **fields: Any) -> None:
        assert self._bridge is not None, "advertise comes first"
        self._bridge.post(op, **fields)

    def _defer(self, op: str, **fields: Any) -> None:
        assert self._bridge is not None, "advertise comes first"
        self._bridge.defer(op, **fields)

    def _request(self, op: str, **fields: Any) -> dict[str, Any]:
        assert self._bridge is not None, "advertise comes first"
        return self._bridge.request(op, **fields)


register("ps")(lambda conf: ParameterServer)
