"""Commands of ``sparkdl-comm`` that predict, without a cluster.

- ``explain``: time of each collective on a network
- ``plan``: how the layers of a network would be grouped into buckets
- ``predict``: time of a fit's iteration on another network, from its timeline
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl_comm.conf import forms
from sparkdl_comm.errors import ConfError, InputError, PersistenceError, nearest
from sparkdl_comm.units import parse_rate

if TYPE_CHECKING:
    from sparkdl_comm.sim.forecast import Forecast, Setting
    from sparkdl_comm.topology import Topology

_ITEMSIZE = 4
_ALL = "all"


def add_parser(commands: Any) -> None:
    """Add the commands."""
    _add_explain(commands)
    _add_plan(commands)
    _add_predict(commands)


def _parse_topology(text: str, rate: str | None, world: int | None = None) -> Topology:
    """Return the topology. ``rate``, ``world``: options of these names."""
    from sparkdl_comm.topology import Topology

    topology = Topology.parse(text)
    if world is not None and world != topology.world:
        raise ConfError(f"--world {world}: {topology} has {topology.world} ranks")
    return topology if rate is None else topology.with_rates(*rate.split("/"))


def _add_explain(commands: Any) -> None:
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
    from sparkdl_comm.units import parse_size

    if options.operation not in OPERATIONS:
        raise ConfError(f"--operation {options.operation!r}: there are {', '.join(OPERATIONS)}")
    if options.density is not None and not 0 < options.density <= 1:
        raise ConfError(f"--density {options.density}: must be more than 0 and at most 1")
    if options.density is not None and options.operation != "all_reduce":
        raise ConfError(f"--density needs --operation all_reduce, not {options.operation}")
    topology = _parse_topology(options.topology, options.rate)
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


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="cut a network into batches of layers, so that communication and computation overlap",
        description="Plans one direction, parameters or gradients, as if it had the network for itself. A fit with"
        " ps.batching=ibatch plans both directions together, and tries the plan against plainer cuts.",
    )
    plan.add_argument(
        "--profile",
        required=True,
        metavar="FILE|NAME",
        help='JSON: {"startup": s, "transfer": [s…], "compute": [s…]}, layer by layer; "bytes": […] for fixed:BYTES. Or a'
        " profile that the package ships, such as resnet50",
    )
    plan.add_argument("--rate", default="10gbit", help="rate of links, with a shipped profile; default: 10gbit")
    plan.add_argument("--startup", default="1ms", help="startup of each transfer, with a shipped profile; default: 1ms")
    plan.add_argument(
        "--policy",
        default="ibatch",
        help=f"{', '.join(forms.POLICIES)}, parts:COUNT or fixed:BYTES; default: ibatch",
    )
    plan.add_argument("--direction", choices=("pull", "push"), default="pull", help="parameters or gradients")
    plan.add_argument("--plot", type=Path, metavar="FILE", help="draw the plan: .png, .svg or .pdf")
    plan.add_argument("--json", action="store_true", help="print JSON instead of a table")
    plan.set_defaults(call=_plan)


def _plan(options: argparse.Namespace) -> int:
    from sparkdl_comm.jvm.planner import plan_buckets

    try:
        forms.policy(options.policy)
    except ValueError as error:
        raise ConfError(f"--policy {options.policy}: must be {error}") from None
    profile = _profile(options)
    (plan,) = plan_buckets([{**profile, "policy": options.policy, "direction": options.direction}])
    if options.plot is not None:
        from sparkdl_comm.report.drawing import save_plan_plot

        save_plan_plot(plan, options.direction, options.plot)
    if options.json:
        shown = {name: getattr(plan, name) for name in ("batches", "predicted_seconds", "optimal_ratio")}
        print(json.dumps(shown))
    else:
        batches = " ".join(f"{first}-{last}" for first, last in plan.batches)
        print(
            f"{len(plan.batches)} batches: {batches}; predicted {plan.predicted_seconds:.6g} s,"
            f" {plan.optimal_ratio:.4f} x the optimum"
        )
    return 0


def _profile(options: argparse.Namespace) -> dict[str, Any]:
    """Return startup and the layers' transfer, compute and bytes, in seconds and bytes."""
    from sparkdl_comm.sim.profile import Profile, shipped

    if options.profile not in shipped():
        return _read(Path(options.profile), shipped())
    try:
        startup = forms.seconds(options.startup)
    except ValueError as error:
        raise ConfError(f"--startup {options.startup}: must be {error}") from None
    layers, rate = Profile.load(options.profile).layers, parse_rate(options.rate)
    sizes = [_ITEMSIZE * layer.parameters for layer in layers]
    return {
        "startup": startup,
        "transfer": [8 * size / rate for size in sizes],
        "compute": [layer.forward if options.direction == "pull" else layer.backward for layer in layers],
        "bytes": sizes,
    }


def _read(path: Path, known: Sequence[str]) -> dict[str, Any]:
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise PersistenceError(
            f"--profile {path}: {exc.strerror}. Give a file, or one of {', '.join(known)}{nearest(str(path), known)}"
        ) from exc
    except ValueError as exc:
        raise InputError(f"--profile {path}: not JSON: {exc}") from exc
    if not isinstance(profile, dict):
        raise InputError(f"--profile {path}: expected an object with startup, transfer and compute")
    return profile


def _add_predict(commands: Any) -> None:
    predict = commands.add_parser(
        "predict",
        help="time of an iteration on another network, or with other strategies, from the timeline of a fit",
        description="Simulates an iteration with the computation of the timeline, and names its bottleneck.",
    )
    predict.add_argument("--timeline", required=True, type=Path, metavar="FILE", help="file written by Timeline.save")
    predict.add_argument("--topology", help="such as bcube:3,2 (docs: Topologies); default: star of --world hosts")
    predict.add_argument("--rate", help="rate of every link, such as 10gbit, if the topology has none")
    predict.add_argument("--world", type=int, help="number of ranks; default: from the topology, else the timeline")
    predict.add_argument(
        "--strategy",
        action="append",
        help=f"ps, a collective, or a decoupled one such as ring+decoupled. Repeat to rank several, or give {_ALL} for every"
        " strategy that the topology allows; default: ps if the timeline is of ps, else ring",
    )
    predict.add_argument("--batching", default="traced", help="of ps: traced (as in the timeline), whole, layerwise")
    predict.add_argument("--bucket", default="4MiB", help="minimum size of a bucket of a collective")
    predict.add_argument("--bytes", help="size of the float32 parameters; default: the timeline's")
    predict.add_argument("--plot", type=Path, metavar="FILE", help="draw the strategies' times: .png, .svg or .pdf")
    predict.add_argument("--json", action="store_true", help="print JSON instead of a table")
    predict.set_defaults(call=_predict)


def _predict(options: argparse.Namespace) -> int:
    from sparkdl_comm.conf.strategy import RING, SERVER
    from sparkdl_comm.report.timeline import read_trace
    from sparkdl_comm.sim.forecast import STRATEGIES, forecast, why_ineligible
    from sparkdl_comm.sim.traced_timings import timings_from_spans
    from sparkdl_comm.units import parse_size

    spans, parameter_bytes = read_trace(options.timeline)
    world = options.world if options.world is not None else len({span["rank"] for span in spans})
    topology = _parse_topology(options.topology or f"star:{world}", options.rate, options.world)
    computed = timings_from_spans(spans, parameter_bytes, None if options.bytes is None else parse_size(options.bytes))
    strategies = options.strategy or [SERVER if computed.pulls else RING]
    left_out: dict[str, str] = {}
    if _ALL in strategies:
        left_out = {name: reason for name in STRATEGIES if (reason := why_ineligible(name, topology))}
        strategies = [name for name in STRATEGIES if name not in left_out]
    settings = [_setting(name, topology, options) for name in dict.fromkeys(strategies)]
    unsorted = [(name, forecast(computed, setting)) for name, setting in settings]
    forecasts = dict(sorted(unsorted, key=lambda pair: pair[1].seconds))
    if options.plot is not None:
        from sparkdl_comm.report.drawing import save_forecast_plot

        save_forecast_plot(forecasts, topology, options.plot)
    if options.json:
        rows = [
            {"strategy": name, **asdict(result), "bottleneck": result.bottleneck} for name, result in forecasts.items()
        ]
        print(json.dumps({"topology": str(topology), "predictions": rows, "left_out": left_out}, indent=1))
    elif len(forecasts) == 1:
        _print_forecast(*forecasts.popitem(), topology)
    else:
        _print_ranking(forecasts, left_out, topology)
    return 0


def _setting(name: str, topology: Topology, options: argparse.Namespace) -> tuple[str, Setting]:
    """Return the name to show and the setting to simulate. ``ps+BATCHING`` sets the batching of that strategy."""
    from sparkdl_comm.conf.strategy import NamedStrategy
    from sparkdl_comm.sim.forecast import Setting
    from sparkdl_comm.units import parse_size

    try:
        named = NamedStrategy.parse(name)
    except ValueError as error:
        raise ConfError(f"--strategy {name}: must be {error}") from None
    strategy, batching = (named.strategy, named.ps_batching) if named.ps_batching else (name, options.batching)
    return name, Setting(topology, strategy, batching, parse_size(options.bucket))


def _print_forecast(strategy: str, result: Forecast, topology: Topology) -> None:
    print(f"{strategy} on {topology}, {topology.world} ranks: {result.seconds:.4g} s an iteration")
    print(f"computing alone {result.computing:.4g} s, communication alone {result.communication:.4g} s")
    print(f"bottleneck: {result.bottleneck}")
    for rail, seconds in enumerate(result.doubled):
        print(f"rail {rail} twice as fast: {seconds:.4g} s, {_format_saving(seconds, result.seconds)}")
    print(f"computing twice as fast: {result.faster:.4g} s, {_format_saving(result.faster, result.seconds)}")


def _print_ranking(forecasts: Mapping[str, Forecast], left_out: Mapping[str, str], topology: Topology) -> None:
    print(f"an iteration on {topology}, {topology.world} ranks, in seconds")
    print(
        f"{'strategy':<24}{'iteration':>10}{'computing':>11}{'communication':>15}  bottleneck, gain if it is twice as fast"
    )
    for name, result in forecasts.items():
        gained = _format_saving(min(result.faster, *result.doubled), result.seconds)
        print(
            f"{name:<24}{result.seconds:>10.4g}{result.computing:>11.4g}{result.communication:>15.4g}"
            f"  {result.bottleneck}, {gained}"
        )
    for name, reason in left_out.items():
        print(f"{name:<24}  left out: {reason}")


def _format_saving(seconds: float, before: float) -> str:
    return f"{100 * (1 - seconds / before):.1f} % less"
