"""``sparkdl-comm explain``: predicted time of each collective on a network."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from sparkdl_comm.errors import ConfError


def add_parser(commands: Any) -> None:
    """Add the command ``explain``."""
    explain = commands.add_parser(
        "explain",
        help="predicted time and bytes of every collective on a topology",
        description="Predicted by the alpha-beta-gamma model from the same steps that a run takes.",
    )
    explain.add_argument("--topology", required=True, help="such as bcube:3,2 or star:9 (docs: Topologies)")
    explain.add_argument("--rate", help="rate of every link, such as 200mbit, if the topology has none")
    explain.add_argument("--bytes", default="64MiB", help="size of the float32 vector")
    explain.add_argument(
        "--operation", default="all_reduce", help="all_reduce, broadcast, reduce, reduce_scatter, all_gather"
    )
    explain.add_argument(
        "--density", type=float, help="share of the elements that a rank sends; adds sparse all-reduces to the table"
    )
    explain.add_argument("--alpha", type=float, help="fixed cost of a message in seconds")
    explain.add_argument("--gamma", type=float, help="cost of adding one byte in seconds")
    explain.add_argument("--json", action="store_true", help="print JSON instead of a table")
    explain.set_defaults(call=_explain)


def _explain(options: argparse.Namespace) -> int:
    from sparkdl_comm.collectives.algorithms import ALGORITHMS
    from sparkdl_comm.collectives.cost import ALPHA, GAMMA, Cost, rank_algorithms
    from sparkdl_comm.collectives.plan import OPERATIONS
    from sparkdl_comm.compress.hitopk import predict_sparse
    from sparkdl_comm.topology import Topology
    from sparkdl_comm.units import parse_size

    if options.operation not in OPERATIONS:
        raise ConfError(f"--operation {options.operation!r}: there are {', '.join(OPERATIONS)}")
    if options.density is not None and not 0 < options.density <= 1:
        raise ConfError(f"--density {options.density}: must be more than 0 and at most 1")
    if options.density is not None and options.operation != "all_reduce":
        raise ConfError(f"--density needs --operation all_reduce, not {options.operation}")
    topology = Topology.parse(options.topology)
    if options.rate is not None:
        topology = topology.with_rates(*options.rate.split("/"))
    alpha = ALPHA if options.alpha is None else options.alpha
    gamma = GAMMA if options.gamma is None else options.gamma
    count = parse_size(options.bytes) // 4
    cost = Cost.of(topology, alpha, gamma)
    predictions = rank_algorithms(options.operation, topology, count, 4, cost)
    if options.density is not None:
        predictions = sorted(
            predictions + predict_sparse(topology, count, options.density, cost), key=lambda one: one.seconds
        )
    left_out = {a.name: a.why_ineligible(topology) for a in ALGORITHMS.values() if a.why_ineligible(topology)}
    left_out |= {
        a.name: f"does no {options.operation}" for a in ALGORITHMS.values() if options.operation not in a.operations
    }
    if options.density is not None and topology.rails > 1:
        left_out["hitopk"] = "is for hosts with one NIC each"
    if options.json:
        rows = [asdict(prediction) for prediction in predictions]
        print(json.dumps({"topology": str(topology), "predictions": rows, "left_out": left_out}, indent=1))
        return 0
    print(f"{options.operation} of {count * 4:,} bytes on {topology}: {topology.world} ranks, {topology.rails} rails")
    print(f"{'algorithm':<14}{'seconds':>10}{'block':>12}  bytes sent by the busiest host, per rail")
    for prediction in predictions:
        block = f"{prediction.block:,}" if prediction.block else "-"
        sent = "  ".join(f"{nbytes:>14,}" for nbytes in prediction.rail_bytes)
        bound = "  (lower bound: busiest link only)" if prediction.is_lower_bound else ""
        print(f"{prediction.algorithm:<14}{prediction.seconds:>10.4g}{block:>12}  {sent}{bound}")
    for name, reason in left_out.items():
        print(f"{name:<14}  left out: {reason}")
    return 0
