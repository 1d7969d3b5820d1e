"""``sparkdl-comm explain``: what each collective would take on a network, before one has it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from sparkdl_comm.errors import ConfError


def add_parser(commands: Any) -> None:
    """Adds ``explain``."""
    explain = commands.add_parser(
        "explain",
        help="predicted time and bytes of every collective on a topology",
        description="Predicted by the alpha-beta-gamma model from the very steps that a run would take.",
    )
    explain.add_argument("--topology", required=True, help="such as bcube:3,2 or star:9; see sparkdl_comm.topology")
    explain.add_argument("--rate", help="of every link, such as 200mbit, if the topology does not say")
    explain.add_argument("--bytes", default="64MiB", help="of the vector, float32")
    explain.add_argument(
        "--operation", default="all_reduce", help="all_reduce, broadcast, reduce, reduce_scatter, all_gather"
    )
    explain.add_argument(
        "--density", type=float, help="share of the elements that a rank sends: shows sparse sums beside dense ones"
    )
    explain.add_argument("--alpha", type=float, help="seconds that a message costs beside its bytes")
    explain.add_argument("--gamma", type=float, help="seconds that adding a byte costs")
    explain.add_argument("--json", action="store_true")
    explain.set_defaults(call=_explain)


def _explain(options: argparse.Namespace) -> int:
    from sparkdl_comm.collectives.algorithms import ALGORITHMS
    from sparkdl_comm.collectives.cost import ALPHA, GAMMA, Cost
    from sparkdl_comm.collectives.plan import OPERATIONS
    from sparkdl_comm.collectives.select import ranking
    from sparkdl_comm.compress.predict import predict_sparse
    from sparkdl_comm.topology import Topology
    from sparkdl_comm.units import parse_size

    if options.operation not in OPERATIONS:
        raise ConfError(f"--operation {options.operation!r}: there are {', '.join(OPERATIONS)}")
    if options.density is not None and not 0 < options.density <= 1:
        raise ConfError(f"--density {options.density}: more than 0 and at most 1")
    if options.density is not None and options.operation != "all_reduce":
        raise ConfError(f"--density is for sums, --operation all_reduce, not {options.operation}")
    topology = Topology.parse(options.topology)
    if options.rate is not None:
        topology = topology.with_rates(*options.rate.split("/"))
    alpha = ALPHA if options.alpha is None else options.alpha
    gamma = GAMMA if options.gamma is None else options.gamma
    count = parse_size(options.bytes) // 4
    cost = Cost.of(topology, alpha, gamma)
    found = ranking(options.operation, topology, count, 4, cost)
    if options.density is not None:
        found = sorted(found + predict_sparse(topology, count, options.density, cost), key=lambda one: one.seconds)
    left_out = {a.name: a.unfit(topology) for a in ALGORITHMS.values() if a.unfit(topology)}
    left_out |= {
        a.name: f"does no {options.operation}" for a in ALGORITHMS.values() if options.operation not in a.operations
    }
    if options.density is not None and topology.rails > 1:
        left_out["hitopk"] = "is for hosts with one NIC each"
    if options.json:
        rows = [asdict(prediction) for prediction in found]
        print(json.dumps({"topology": str(topology), "predictions": rows, "left_out": left_out}, indent=1))
        return 0
    print(f"{options.operation} of {count * 4:,} bytes on {topology}: {topology.world} ranks, {topology.rails} rails")
    print(f"{'algorithm':<14}{'seconds':>10}{'block':>12}  bytes sent by the busiest host, per rail")
    for prediction in found:
        block = f"{prediction.block:,}" if prediction.block else "-"
        sent = "  ".join(f"{nbytes:>14,}" for nbytes in prediction.rail_bytes)
        bound = "  (busiest link alone)" if prediction.bound else ""
        print(f"{prediction.algorithm:<14}{prediction.seconds:>10.4g}{block:>12}  {sent}{bound}")
    for name, reason in left_out.items():
        print(f"{name:<14}  left out: {reason}")
    return 0
