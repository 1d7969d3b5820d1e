"""Hierarchical top-k communication, for hosts with several ranks: fast links inside a host, slow links between hosts.

Steps: n-1 + those of an all-gather of m + n-1, for m hosts with n ranks each.
Bytes on the wire: (m-1) n s into a host over its NIC, where s is the bytes of the elements that a rank selects from 1/n
of the vector. Inside the host, 4(n-1)/n d and (n-1) m s into each rank, where d is the number of elements of the
vector.

1. reduce-scatter among the ranks of a host: each rank has 1/n of the vector, summed over the host.
2. Each rank selects elements from its part, with error feedback.
3. Ranks with the same number on all hosts all-gather their selections: n all-gathers at once.
4. The ranks of a host all-gather the results.
5. Every rank adds up all m n selections, in the order of the hosts.

HiTopKComm, Algorithm 2 in Shaohuai Shi, Xianhao Zhou, Shutao Song and others: "Towards Scalable Distributed Training of
Deep Learning on Public Cloud Clusters", 2021. There a rank adds up before step 4, which then moves sums of sparse
vectors. Here the traffic inside a host is as sparse as between hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import torch

from sparkdl_comm.collectives.cost import Cost, Prediction, rank_algorithms
from sparkdl_comm.collectives.group import CollectiveGroup, RankGroup, topology_of
from sparkdl_comm.collectives.plan import part_start
from sparkdl_comm.compress.feedback import FlatRange, RangeFactory
from sparkdl_comm.compress.sums import CompressedSum, Sparsifier
from sparkdl_comm.compress.wire import SparseFormat
from sparkdl_comm.conf import CommConf
from sparkdl_comm.conf.strategy import CHEAPEST
from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology


class HiTopK(CompressedSum):
    """Compressed sum by hierarchical top-k. All of ``ranks`` create one.

    :raises ConfError: hosts have different numbers of ranks, or several rails.
    """

    def __init__(
        self, sparsifier: Sparsifier, make_range: RangeFactory, ranks: RankGroup, conf: CommConf, device: torch.device
    ) -> None:
        check_rails(len(ranks.members[0].rails))
        hosts = Counter(member.rails[0].address for member in ranks.members)
        if len(set(hosts.values())) > 1:
            raise ConfError(
                f"strategy hitopk needs the same number of ranks on each host, not {dict(hosts)}. Change num_workers,"
                " executors or cores, or use another strategy (spark.sparkdl.comm.strategy)"
            )
        topology, order, _ = topology_of(ranks, conf.topology)
        super().__init__(sparsifier, make_range, contributor_count=len(topology.hosts))
        self._sparsifier, self._slots = sparsifier, topology.ranks_per_host
        host, self._slot = divmod(order.index(ranks.rank), self._slots)
        self._groups: list[CollectiveGroup] = []

        def group(algorithm: str, part: RankGroup | None) -> CollectiveGroup:
            self._groups.append(CollectiveGroup(ranks.gang, algorithm, conf, device, part))
            return self._groups[-1]

        try:
            self._inside_group = group("ring", ranks.split(host, self._slot, conf.timeout))
            self._between_group = group(CHEAPEST, ranks.split(self._slot, host, conf.timeout))
        except BaseException:
            self.close()
            raise

    def own_range(self, start: int, stop: int) -> FlatRange:
        return self._slot_range(self._slot, start, stop)

    def stages(self, start: int, vector: torch.Tensor, density: float, scale: float) -> Iterator[None]:
        stop = start + vector.numel()
        own = self.own_range(start, stop)
        work = self._inside_group.start("reduce_scatter", vector)
        yield
        work.wait()
        packed = self._sparsifier.encode(own, vector[own.start - start : own.stop - start], density, scale)
        message = packed.new_zeros(self._message_bytes(start, stop, density))
        message[: packed.numel()] = packed
        host_messages = message.new_empty((self.contributor_count, message.numel()))
        gathering = self._between_group.all_gather(message, host_messages)
        yield
        gathering.wait()
        all_messages = message.new_empty((self._slots, *host_messages.shape))
        gathering = self._inside_group.all_gather(host_messages, all_messages)
        yield
        gathering.wait()
        for slot in range(self._slots):
            part = self._slot_range(slot, start, stop)
            self._sparsifier.sum_selections(
                part, list(all_messages[slot]), density, vector[part.start - start : part.stop - start]
            )

    def arriving_bytes(self, start: int, stop: int, density: float) -> int:
        dense = 4 * (self._slots - 1) * (stop - start) // self._slots
        message = self._message_bytes(start, stop, density)
        return dense + (self.contributor_count - 1) * message + (self._slots - 1) * self.contributor_count * message

    def close(self) -> None:
        for group in self._groups:
            group.close()

    def _slot_range(self, slot: int, start: int, stop: int) -> FlatRange:
        """Return the part that rank ``slot`` of a host's ring owns."""
        first, end = (part_start(start, stop, self._slots, place) for place in (slot, slot + 1))
        return self._make_range(first, end)

    def _message_bytes(self, start: int, stop: int, density: float) -> int:
        """Return the bytes of the longest message of a rank of the host.

        Parts may differ by one element, and in their number of parameters.
        """
        parts = [self._slot_range(slot, start, stop) for slot in range(self._slots)]
        return max(1, *(self._sparsifier.make_format(part, density).nbytes for part in parts))


def check_rails(rails: int) -> None:
    """Check that hosts have one rail.

    :raises ConfError: they have several.
    """
    if rails != 1:
        raise ConfError(
            f"strategy hitopk is for hosts with one NIC each, not {rails} rails (spark.sparkdl.comm.rails). Use bml with"
            " spark.sparkdl.comm.compression"
        )


def predict_sparse(topology: Topology, count: int, density: float, cost: Cost) -> list[Prediction]:
    """Return predictions for the sparse sums that can run on the topology, cheapest first: of their transfers, without
    selecting and adding up.

    ``count``: elements of the vector, sent as float32. ``density``: fraction of them to select.
    """
    found = [_predict_naive(topology, count, density, cost)]
    if topology.rails == 1:
        found.append(_predict_hierarchical(topology, count, density, cost))
    return sorted(found, key=lambda prediction: prediction.seconds)


def _predict_naive(topology: Topology, count: int, density: float, cost: Cost) -> Prediction:
    best = rank_algorithms(
        "all_gather", topology, topology.world * SparseFormat.of_density(count, density).nbytes, 1, cost
    )[0]
    return replace(best, algorithm="naive-ag")


def _predict_hierarchical(topology: Topology, count: int, density: float, cost: Cost) -> Prediction:
    hosts, slots = len(topology.hosts), topology.ranks_per_host
    message = SparseFormat.of_density(-(-count // slots), density).nbytes
    seconds, rail_bytes, is_lower_bound = 0.0, 0, False
    if slots > 1:
        host = Topology.parse(f"hosts:1x{slots}")
        seconds += rank_algorithms("reduce_scatter", host, count, 4, cost)[0].seconds
        seconds += rank_algorithms("all_gather", host, slots * hosts * message, 1, cost)[0].seconds
    if hosts > 1:
        shared = replace(cost, betas=(slots * cost.betas[0],))  # one all-gather per rank of a host shares the NIC
        between = rank_algorithms("all_gather", Topology.parse(f"star:{hosts}"), hosts * message, 1, shared)[0]
        seconds += between.seconds
        rail_bytes, is_lower_bound = slots * between.rail_bytes[0], between.is_lower_bound
    return Prediction("hitopk", seconds, (rail_bytes,), 0, is_lower_bound)
