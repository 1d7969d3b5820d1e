"""Strategies gloo and nccl: torch.distributed's all-reduce of the flat gradient, optimizer on every rank. The baseline."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from sparkdl_comm.errors import ConfError, DeadlineError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.process_group import default_group
from sparkdl_comm.gang.torch_errors import peer_late
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import register
from sparkdl_comm.strategies.replicated import Replicated


class AllReduce(Replicated):
    """Steps: backward; one all-reduce (sum) of the flat gradient; the whole optimizer step on every rank."""

    backend = ""

    _group: dist.ProcessGroup | None = None

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        super().join(gang, model, make_optimizer)
        self._group = default_group(self.backend, gang, self.conf.timeout)

    def after_backward(self) -> None:
        with self.watch.phase("push"):
            self._collective("all-reduce", lambda: dist.all_reduce(self._model.gradients))
        # A ring moves each byte of the vector 2(N-1)/N times into each rank; the backends count nothing themselves.
        moved = self._model.gradients.nbytes * (self._world - 1) // self._world
        self.watch.bytes["push"] += moved
        self.watch.bytes["pull"] += moved

    def finish(self) -> None:
        self._collective("barrier", dist.barrier)

    def abort(self) -> None:
        """Nothing: a failing peer closes its connections, which ends an all-reduce that waits for it."""

    def _collective(self, what: str, run: Callable[[], object]) -> None:
        try:
            run()
        except RuntimeError as exc:
            if not peer_late(exc):
                raise
            raise DeadlineError(
                f"a {self.backend} {what} waited {self.conf.timeout:g} s for another rank; a rank that needs longer than"
                " that for a step needs a larger spark.sparkdl.comm.timeout"
            ) from exc

    def close(self) -> None:
        if self._group is not None:
            self._group = None
            dist.destroy_process_group()


class Gloo(AllReduce):
    backend = "gloo"


class Nccl(AllReduce):
    backend = "nccl"

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        if next(model.module.parameters()).device.type != "cuda":
            raise ConfError(
                "strategy nccl needs GPUs: set device='cuda', or strategy gloo (spark.sparkdl.comm.strategy)"
            )
        super().join(gang, model, make_optimizer)


register("gloo")(lambda conf: Gloo)
register("nccl")(lambda conf: Nccl)
