"""Predicted time of sparse sums: their transfers, without selecting and adding up. Pure."""

from __future__ import annotations

from dataclasses import replace

from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.select import Prediction, rank_algorithms
from sparkdl_comm.compress.wire import SparseFormat
from sparkdl_comm.topology import Topology


def predict_sparse(topology: Topology, count: int, density: float, cost: Cost) -> list[Prediction]:
    """Return predictions for the sparse sums that can run on the topology, cheapest first.

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
