"""Strategy hitopk: hierarchical top-k of gradients (``compress/hitopk.py``); dense steps use the cheapest all-reduce."""

from __future__ import annotations

from sparkdl_comm.collectives.group import RankGroup
from sparkdl_comm.compress.feedback import RangeFactory
from sparkdl_comm.compress.hitopk import HiTopK, check_rails
from sparkdl_comm.compress.sums import CompressedSum
from sparkdl_comm.conf import DEFAULT_COMPRESSION, PREFIX, CommConf, Compression
from sparkdl_comm.conf.strategy import CHEAPEST
from sparkdl_comm.errors import ConfError
from sparkdl_comm.strategies.collective import CollectiveAllReduce


class HierarchicalTopK(CollectiveAllReduce):
    """Strategy with hierarchical top-k sums.

    Steps: during backward, each bucket of gradients is summed as soon as it is ready; every rank then takes the whole
    optimizer step.
    """

    algorithm = CHEAPEST

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        super().check(conf, world)
        check_rails(len(conf.rails) or 1)
        if conf.compression.method is not None and conf.compression.method.rank:
            raise ConfError(
                f"{PREFIX}compression={conf.compression.method}: strategy hitopk sends the largest elements. Use"
                " strategy auto."
            )

    @property
    def compression(self) -> Compression:
        return self.conf.compression.method or DEFAULT_COMPRESSION

    def _compressed_sum(self, compression: Compression, part_of: RangeFactory) -> CompressedSum:
        name = f"hitopk {self.number}" if self.number else ""
        ranks, device = RankGroup(self._gang, range(self._gang.world), name), self._model.gradients.device
        return HiTopK(self._sparsifier(compression), part_of, ranks, self.conf, device)
