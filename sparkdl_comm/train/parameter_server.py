"""Strategy ps: a synchronous parameter server in Spark's BlockManager, every executor the server of one shard.

Steps of an iteration, in the executor's JVM but for the optimizer (spec: iBatch, policy ``whole``):

1. pull: fetch the shards of the other N-1 servers, all at once; (N-1)/N of the model's bytes into each rank;
2. forward and backward, here;
3. push: each server fetches its shard's gradients from the other N-1 ranks; as many bytes again;
4. aggregate: the server adds them up, in the order of the ranks;
5. update: the user's optimizer on this shard alone, here;
6. publish the shard as the next version; the pull of that version begins at once.

Parameters and gradients of a CPU rank are views of memory that the JVM serves and fetches in place. A GPU rank computes on
its device and copies through that memory, pinned.
"""

from __future__ import annotations

from typing import Any

import torch

from sparkdl_comm.errors import ModelError
from sparkdl_comm.ps.bridge import PROTOCOL, Bridge
from sparkdl_comm.ps.segment import SharedSegment
from sparkdl_comm.train.flat import FlatModel
from sparkdl_comm.train.gang import Gang
from sparkdl_comm.train.optimizing import OptimizerMaker
from sparkdl_comm.train.strategy import Strategy

#: Optimizers that look at whole tensors, where a rank has only its stripes of each.
_NOT_ELEMENTWISE = ("LBFGS", "Adafactor", "Muon", "SparseAdam")


class ParameterServer(Strategy):
    needs_plugin = True
    sharded = True

    _bridge: Bridge | None = None
    _segment: SharedSegment | None = None

    def advertise(self, epoch_id: str, rank: int) -> dict[str, Any]:
        self._bridge = Bridge.of_this_executor(self.conf.timeout)
        # 62 bits: a job id is a positive long for the JVM, far from the ids that Spark gives to its broadcasts.
        job = int(epoch_id, 16) >> 2 | 1 << 61
        answer = self._bridge.request("hello", protocol=PROTOCOL, job=job, rank=rank)
        del answer["ok"]
        return answer

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        self._gang = gang
        answer = self._request(
            "open",
            peers=[member.payload["strategy"] for member in gang.members],
            layers=[layer.count for layer in model.layers],
            wire=self.conf.ps_wire,
            timeout=self.conf.timeout,
        )
        self._segment = segment = SharedSegment(answer["segment_bytes"])
        try:
            self._request("attach", path=segment.path)
        finally:
            segment.detach()
        self._host_values = segment.floats(answer["parameters_offset"], model.count)
        self._host_gradients = segment.floats(answer["gradients_offset"], model.count)
        self._bind(model, segment)
        self.optimizer = self._shard_optimizer(segment, answer["shard"], model, make_optimizer)
        self._version = 0
        self._pulled = -1
        # All ranks begin with the same values (the gang compared fingerprints), unless the wire rounds them.
        if self.conf.ps_wire != "fp32":
            self._publish()

    def before_forward(self) -> None:
        if self._pulled == self._version or (self._version == 0 and self.conf.ps_wire == "fp32"):
            return
        with self.watch.phase("pull"):
            answer = self._request("pull", version=self._version)
            if self._on_gpu:
                self._model.values.copy_(self._host_values, non_blocking=True)
        self._pulled = self._version
        self.watch.bytes["pull"] += answer["bytes"]

    def after_backward(self) -> None:
        with self.watch.phase("push"):
            if self._on_gpu:
                self._host_gradients.copy_(self._model.gradients)
            answer = self._request("push", version=self._version)
        self.watch.seconds["push"] -= answer["aggregate_seconds"]
        self.watch.seconds["aggregate"] += answer["aggregate_seconds"]
        self.watch.bytes["push"] += answer["bytes"]

    def gradients(self) -> list[torch.Tensor]:
        return self._shard_gradients

    def update(self, apply: bool = True) -> None:
        with self.watch.phase("update"):
            if apply:
                self.optimizer.step()
            self._version += 1
            self._publish()

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return self._owned

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
        if self._segment is not None:
            self._segment.unpin()
            self._segment = None

    def _bind(self, model: FlatModel, segment: SharedSegment) -> None:
        device = next(model.module.parameters()).device
        self._model = model
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            segment.pin()
            model.bind(torch.empty(model.count, device=device), torch.zeros(model.count, device=device))
            self._host_values.copy_(model.values)
        else:
            model.bind(self._host_values, self._host_gradients)

    def _shard_optimizer(
        self, segment: SharedSegment, shard: list[dict[str, int]], model: FlatModel, make_optimizer: OptimizerMaker
    ) -> torch.optim.Optimizer:
        """The user's optimizer over this rank's stripe of each parameter."""
        stripes = []
        self._owned, self._shard_gradients = [], []
        for piece in shard:
            start, master = piece["start"], segment.floats(piece["master_offset"], piece["count"])
            master.copy_(self._host_values[start : start + piece["count"]])
            self._owned.append((start, master))
            self._shard_gradients.append(self._host_gradients[start : start + piece["count"]])
            for cut in model.cut(start, piece["count"]):
                stripe = torch.nn.Parameter(master[cut.start - start : cut.start - start + cut.count])
                stripe.grad = self._host_gradients[cut.start : cut.start + cut.count]
                stripes.append((cut.owner, stripe))
        made = make_optimizer(stripes)
        if type(made).__name__ in _NOT_ELEMENTWISE:
            raise ModelError(
                f"optimizer {type(made).__name__} needs whole tensors, and strategy ps gives each rank its stripes of them:"
                " use strategy gloo or nccl (spark.sparkdl.comm.strategy)"
            )
        return made

    def _publish(self) -> None:
        assert self._bridge is not None
        self._bridge.post("publish", version=self._version)

    def _request(self, op: str, **fields: Any) -> dict[str, Any]:
        assert self._bridge is not None, "advertise comes first"
        return self._bridge.request(op, **fields)
