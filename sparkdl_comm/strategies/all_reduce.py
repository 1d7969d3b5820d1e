"""Strategies gloo and nccl, the baseline: torch.distributed all-reduces the flat gradient, every rank updates."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from sparkdl_comm.errors import ConfError, DeadlineError
from sparkdl_comm.gang.failure import is_peer_late
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.process_group import default_group
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import ReplicatedStrategy


class AllReduce(ReplicatedStrategy):
    """Strategy that all-reduces with a torch.distributed backend.

    Steps: backward; one all-reduce (sum) of the flat gradient; the whole optimizer step on every rank.
    """

    backend = ""

    _group: dist.ProcessGroup | None = None

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        super().join(gang, model, make_optimizer)
        self._group = default_group(self.backend, gang, self.conf.timeout)

    def after_backward(self) -> None:
        with self.watch.phase("push"):
            self._run_collective("all-reduce", lambda: dist.all_reduce(self._model.gradients))
        # The backends count no bytes. A ring delivers 2(N-1)/N of the vector to each rank: half as sums, half as results.
        moved_bytes = self._model.gradients.nbytes * (self._world - 1) // self._world
        self.watch.bytes["push"] += moved_bytes
        self.watch.bytes["pull"] += moved_bytes

    def finish(self) -> None:
        self._run_collective("barrier", dist.barrier)

    def abort(self) -> None:
        """Do nothing: a failing peer closes its connections, which ends every all-reduce that waits for it."""

    def _run_collective(self, name: str, run: Callable[[], object]) -> None:
        try:
            run()
        except RuntimeError as exc:
            if not is_peer_late(exc):
                raise
            raise DeadlineError(
                f"a {self.backend} {name} waited {self.conf.timeout:g} s for another rank. If a step can take longer, set a"
                " larger spark.sparkdl.comm.timeout."
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
        if model.device.type != "cuda":
            raise ConfError(
                "strategy nccl needs GPUs, but the model is not on one. Set device='cuda', or"
                " spark.sparkdl.comm.strategy=gloo."
            )
        super().join(gang, model, make_optimizer)
