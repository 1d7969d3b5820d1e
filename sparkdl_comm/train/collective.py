"""Strategies bml, lp, ring, mst, be, torus2d, hierarchical, p2p-ps and auto: an all-reduce of this package's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.discover import given
from sparkdl_comm.collectives.group import AUTO, CollectiveGroup, Work, check_fits
from sparkdl_comm.collectives.plan import Kind
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import SparkdlCommError
from sparkdl_comm.train.buckets import Buckets
from sparkdl_comm.train.control import VERDICT_SECONDS
from sparkdl_comm.train.flat import FlatModel
from sparkdl_comm.train.gang import Gang
from sparkdl_comm.train.optimizing import OptimizerMaker
from sparkdl_comm.train.process_group import default_group
from sparkdl_comm.train.replicated import Replicated
from sparkdl_comm.train.strategy import Strategy


class CollectiveAllReduce(Replicated):
    """Steps: backward, and meanwhile all-reduces (sum) by ``algorithm`` of those parts of the flat gradient that are there;
    the whole optimizer step on every rank."""

    algorithm = AUTO

    _group: CollectiveGroup | None = None
    _nccl: dist.ProcessGroup | None = None

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        if conf.topology:
            check_fits(cls.algorithm, given(conf.topology, world, len(conf.rails) or 1))

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        super().join(gang, model, make_optimizer)
        self._gang = gang
        device = model.gradients.device
        if device.type == "cuda":
            self._nccl = default_group("nccl", gang, self.conf.timeout)
        self._group = group = CollectiveGroup(gang, self.algorithm, self.conf, device)
        self._jobs: list[Work] = []
        self._buckets = Buckets(model, self.conf.bucket, self._send)
        self._arriving = {"push": 0, "pull": 0}
        for start, stop in self._buckets.ranges:
            for step in group.prepare("all_reduce", stop - start, torch.float32).plan.program(group.place).steps:
                if step.kind is not Kind.SEND:
                    self._arriving["push" if step.kind is Kind.COMBINE else "pull"] += 4 * (step.stop - step.start)

    def backward(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around a backward pass; ``last``: of the step, so that gradients travel as soon as they are there."""
        return self._buckets.backward(last)

    def after_backward(self) -> None:
        with self.watch.phase("push"):
            self._buckets.flush()
            jobs, self._jobs = self._jobs, []
            for job in jobs:
                self._wait(job)
        for way, arriving in self._arriving.items():
            self.watch.bytes[way] += arriving

    def finish(self) -> None:
        """Nothing: the last step ended with all-reduces, so all ranks have it."""

    def abort(self) -> None:
        """Nothing: the group hears of the gang's failure itself."""

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        if self._nccl is not None:
            self._nccl = None
            dist.destroy_process_group()

    def _send(self, start: int, stop: int) -> None:
        assert self._group is not None
        with self._typed():
            self._jobs.append(self._group.start("all_reduce", self._model.gradients[start:stop]))

    def _wait(self, job: Work) -> None:
        with self._typed():
            job.wait()

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        """Raises the gang's failure, if there is one, instead of what it looks like from here."""
        try:
            yield
        except SparkdlCommError:
            self._gang.check(VERDICT_SECONDS)
            raise


def strategies() -> dict[str, type[Strategy]]:
    """One for each algorithm, and auto, by name."""
    names = [*ALGORITHMS, AUTO]
    return {name: type(f"Collective_{name}", (CollectiveAllReduce,), {"algorithm": name}) for name in names}
