"""Sparse sums of the buckets of torch's DistributedDataParallel, whose communication hooks see one at a time."""

from __future__ import annotations

import itertools
from collections.abc import Hashable

import torch

from sparkdl_comm.collectives.group import AUTO, CollectiveGroup
from sparkdl_comm.collectives.rank_group import RankGroup
from sparkdl_comm.compress.compressed_sum import CompressedSum
from sparkdl_comm.compress.hitopk import HiTopK
from sparkdl_comm.compress.naive_all_gather import NaiveAllGather
from sparkdl_comm.compress.part import Part
from sparkdl_comm.compress.sparsifier import Sparsifier
from sparkdl_comm.compress.stages import Staged, Stages
from sparkdl_comm.conf import CommConf, Compression

#: A bucket has fewer elements: so far apart are their places in a vector of all buckets.
_STRIDE = 1 << 40


class DdpSums:
    """One rank's. All of ``ranks`` make one, and give it the same buckets in the same order.

    DDP makes its buckets anew after the first step; what was left out of the former ones is then lost.
    """

    def __init__(
        self, ranks: RankGroup, conf: CommConf, device: torch.device, compression: Compression, hierarchical: bool
    ) -> None:
        self._density = compression.density
        self._sparsifier = Sparsifier.of(compression, conf, ranks.rank)
        #: By a bucket's number in the step: what it was made of, and where it lies in the vector of all that there were.
        self._places: dict[int, tuple[Hashable, int]] = {}
        self._stale: list[int] = []
        self._numbers = itertools.count()
        self._timeout = conf.timeout
        self._group: CollectiveGroup | None = None
        self._sum: CompressedSum
        if hierarchical:
            self._sum = HiTopK(self._sparsifier, _whole, ranks, conf, device)
        else:
            self._group = CollectiveGroup(ranks.gang, AUTO, conf, device, ranks)
            self._sum = NaiveAllGather(self._sparsifier, _whole, self._group, ranks.world)
        self._stages = Stages("sparkdl-comm-compression")

    def start(self, index: int, gradients: torch.Tensor, made_of: Hashable, last: bool) -> Staged:
        """Begins to make ``gradients``, float32 ``[n]``, bucket ``index`` of the step, the sum over the ranks.

        :param made_of: tells buckets of other parameters apart.
        """
        feedback = self._sparsifier.feedback
        if index == 0:  # the step before is complete: nobody else uses what was left out
            feedback.settle(True)
            while self._stale:
                place = self._stale.pop()
                feedback.forget(place, place + _STRIDE)
        known, place = self._places.get(index, (None, 0))
        if known != made_of:
            self._stale += [place] * (known is not None)
            place = next(self._numbers) * _STRIDE
            self._places[index] = made_of, place
        return self._stages.start(self._sum.stages(place, gradients, self._density, 1.0), last)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._sum.close()
        self._stages.close(self._timeout)


def _whole(start: int, stop: int) -> Part:
    """DDP does not tell which parameters a step used."""
    return Part(start, stop, ())
