"""``sparkdl-comm plan``: shows how the layers of a network would be grouped into batches (buckets of layers)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sparkdl_comm.conf.values import POLICIES
from sparkdl_comm.errors import InputError, PersistenceError


def add_parser(commands: Any) -> None:
    """Adds ``plan``."""
    plan = commands.add_parser(
        "plan", help="cut a network into batches of layers, so that communication and computation overlap"
    )
    plan.add_argument(
        "--profile",
        required=True,
        type=Path,
        metavar="FILE",
        help='JSON: {"startup": s, "transfer": [s…], "compute": [s…]}, layer by layer; "bytes": […] for fixed:BYTES',
    )
    plan.add_argument(
        "--policy",
        default="ibatch",
        help=f"{', '.join(POLICIES)}, parts:COUNT or fixed:BYTES; default: ibatch",
    )
    plan.add_argument("--direction", choices=("pull", "push"), default="pull", help="parameters or gradients")
    plan.add_argument("--plot", type=Path, metavar="FILE", help="draw the plan: .png, .svg or .pdf")
    plan.add_argument("--json", action="store_true")
    plan.set_defaults(call=_plan)


def _plan(options: argparse.Namespace) -> int:
    from sparkdl_comm.strategies.ps.planner import plan_buckets

    profile = _read(options.profile)
    (plan,) = plan_buckets([{**profile, "policy": options.policy, "direction": options.direction}])
    if options.plot is not None:
        from sparkdl_comm.report.plan_plot import save_plot

        save_plot(plan, options.direction, options.plot)
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


def _read(path: Path) -> dict[str, Any]:
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise PersistenceError(f"--profile {path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise InputError(f"--profile {path}: not JSON: {exc}") from exc
    if not isinstance(profile, dict):
        raise InputError(f"--profile {path}: expected an object with startup, transfer and compute")
    return profile
