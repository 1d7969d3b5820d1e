"""``sparkdl-comm plan``: how the layers of a network would be grouped into buckets."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkdl_comm.conf import forms
from sparkdl_comm.errors import ConfError, InputError, PersistenceError, nearest
from sparkdl_comm.units import parse_rate

_ITEMSIZE = 4


def add_parser(commands: Any) -> None:
    """Add the command ``plan``."""
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
