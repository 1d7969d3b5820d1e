"""``sparkdl-comm predict``: time of a fit's iteration on another network, predicted from its timeline."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl_comm.errors import ConfError

if TYPE_CHECKING:
    from sparkdl_comm.sim.forecast import Forecast, Setting
    from sparkdl_comm.topology import Topology

_ALL = "all"


def add_parser(commands: Any) -> None:
    """Add the command ``predict``."""
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
    from sparkdl_comm.conf.strategy import SERVER
    from sparkdl_comm.report.timeline import read_trace
    from sparkdl_comm.sim.forecast import STRATEGIES, forecast, why_ineligible
    from sparkdl_comm.sim.traced_timings import timings_from_spans
    from sparkdl_comm.topology import Topology
    from sparkdl_comm.units import parse_size

    spans, parameter_bytes = read_trace(options.timeline)
    world = options.world if options.world is not None else len({span["rank"] for span in spans})
    topology = Topology.parse(options.topology or f"star:{world}")
    if options.world is not None and options.world != topology.world:
        raise ConfError(f"--world {options.world}: {topology} has {topology.world} ranks")
    if options.rate is not None:
        topology = topology.with_rates(*options.rate.split("/"))
    computed = timings_from_spans(spans, parameter_bytes, None if options.bytes is None else parse_size(options.bytes))
    strategies = options.strategy or [SERVER if computed.pulls else "ring"]
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
