"""Strategies bml, lp, ring, mst, be, torus2d, hierarchical, p2p-ps and auto: an all-reduce of this package's own."""

from __future__ import annotations

import torch

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.group import AUTO, CollectiveGroup
from sparkdl_comm.collectives.plan import Kind
from sparkdl_comm.errors import ConfError, SparkdlCommError
from sparkdl_comm.train.control import VERDICT_SECONDS
from sparkdl_comm.train.flat import FlatModel
from sparkdl_comm.train.gang import Gang
from sparkdl_comm.train.optimizing import OptimizerMaker
from sparkdl_comm.train.replicated import Replicated
from sparkdl_comm.train.strategy import Strategy


class CollectiveAllReduce(Replicated):
    """Steps: backward; one all-reduce (sum) of the flat gradient by ``algorithm``; the whole optimizer step on every rank."""

    algorithm = AUTO

    _group: CollectiveGroup | None = None

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        device = next(model.module.parameters()).device
        if device.type != "cpu":
            raise ConfError(
                f"strategy {self.algorithm} moves tensors of the CPU so far, not of {device}: set device='cpu', or strategy"
                " nccl (spark.sparkdl.comm.strategy)"
            )
        super().join(gang, model, make_optimizer)
        self._gang = gang
        self._group = CollectiveGroup(gang, self.algorithm, self.conf)
        steps = self._group.prepare("all_reduce", model.count, torch.float32).steps
        arriving = [(step.kind, step.stop - step.start) for step in steps if step.kind is not Kind.SEND]
        self._arriving = {
            "push": 4 * sum(count for kind, count in arriving if kind is Kind.COMBINE),
            "pull": 4 * sum(count for kind, count in arriving if kind is Kind.RECEIVE),
        }

    def after_backward(self) -> None:
        with self.watch.phase("push"):
            self._all_reduce(self._model.gradients)
        for way, arriving in self._arriving.items():
            self.watch.bytes[way] += arriving

    def finish(self) -> None:
        """All ranks have all bytes of the last step: it ended with an all-reduce of everybody's."""
        self._all_reduce(torch.zeros(1))

    def abort(self) -> None:
        """Nothing: the group hears of the gang's failure itself."""

    def close(self) -> None:
        if self._group is not None:
            self._group.close()

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        assert self._group is not None
        try:
            self._group.start("all_reduce", tensor).wait()
        except SparkdlCommError:
            self._gang.check(VERDICT_SECONDS)
            raise


def strategies() -> dict[str, type[Strategy]]:
    """One for each algorithm, and auto, by name."""
    names = [*ALGORITHMS, AUTO]
    return {name: type(f"Collective_{name}", (CollectiveAllReduce,), {"algorithm": name}) for name in names}
