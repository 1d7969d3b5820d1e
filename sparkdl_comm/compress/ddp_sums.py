"""Sparse sums for torch's DistributedDataParallel, whose communication hooks see one bucket at a time."""

from __future__ import annotations

import itertools
from collections.abc import Hashable

import torch

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.collectives.rank_group import RankGroup
from sparkdl_comm.compress.compressed_sum import CompressedSum
from sparkdl_comm.compress.flat_range import FlatRange
from sparkdl_comm.compress.hitopk import HiTopK
from sparkdl_comm.compress.naive_all_gather import NaiveAllGather
from sparkdl_comm.compress.sparsifier import Sparsifier
from sparkdl_comm.compress.stages import StagedExchange, StageRunner
from sparkdl_comm.conf import CommConf, Compression
from sparkdl_comm.conf.strategy import CHEAPEST

#: Distance between the starts of buckets in a virtual vector of all buckets. A bucket has fewer elements.
_STRIDE = 1 << 40


class DdpSums:
    """Sparse sums of DDP's buckets, for one rank. All of ``ranks`` create one and pass the same buckets in the same
    order.

    DDP makes new buckets after the first step. The residuals of the old buckets are then lost.
    """

    def __init__(
        self, ranks: RankGroup, conf: CommConf, device: torch.device, compression: Compression, is_hierarchical: bool
    ) -> None:
        self._density = compression.density
        self._sparsifier = Sparsifier.of(compression, conf, ranks.rank)
        #: Number of a bucket in the step -> (``parameters_key``, start of the bucket in the virtual vector of all buckets).
        self._bucket_starts: dict[int, tuple[Hashable, int]] = {}
        self._stale_starts: list[int] = []
        self._numbers = itertools.count()
        self._timeout = conf.timeout
        self._group: CollectiveGroup | None = None
        self._sum: CompressedSum
        if is_hierarchical:
            self._sum = HiTopK(self._sparsifier, _whole_range, ranks, conf, device)
        else:
            self._group = CollectiveGroup(ranks.gang, CHEAPEST, conf, device, ranks)
            self._sum = NaiveAllGather(self._sparsifier, _whole_range, self._group, ranks.world)
        self._stages = StageRunner("sparkdl-comm-compression")

    def start(self, index: int, gradients: torch.Tensor, parameters_key: Hashable, is_last: bool) -> StagedExchange:
        """Begin to replace ``gradients``, float32 ``[n]``, bucket ``index`` of the step, by their sum over the ranks.

        :param parameters_key: identifies the parameters in the bucket.
        :param is_last: True for the last bucket of the step.
        """
        feedback = self._sparsifier.feedback
        if index == 0:  # the previous step is complete, so nothing uses the residuals now
            feedback.settle(True)
            while self._stale_starts:
                start = self._stale_starts.pop()
                feedback.forget(start, start + _STRIDE)
        known_parameters, start = self._bucket_starts.get(index, (None, 0))
        if known_parameters != parameters_key:
            self._stale_starts += [start] * (known_parameters is not None)
            start = next(self._numbers) * _STRIDE
            self._bucket_starts[index] = parameters_key, start
        return self._stages.start(self._sum.stages(start, gradients, self._density, 1.0), is_last)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._sum.close()
        self._stages.close(self._timeout)


def _whole_range(start: int, stop: int) -> FlatRange:
    """Return the range as a part without pieces: DDP does not tell which parameters a step used."""
    return FlatRange(start, stop, ())
