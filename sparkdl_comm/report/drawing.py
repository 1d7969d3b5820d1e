"""Figures for the option ``--plot`` of the commands. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkdl_comm.errors import PersistenceError, PluginError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from collections.abc import Mapping

from sparkdl_comm.jvm.planner import Bucketing
from sparkdl_comm.sim.forecast import Forecast
from sparkdl_comm.topology import Topology

#: Fields of a forecast, from top to bottom, and their colors.
_BARS = {"seconds": "tab:blue", "computing": "tab:green", "communication": "tab:orange"}
_THICK = 0.8 / len(_BARS)


def save_forecast_plot(forecasts: Mapping[str, Forecast], topology: Topology, path: Path) -> None:
    """Write the drawing. The suffix decides the format (.png, .svg, .pdf).

    :param forecasts: forecasts by strategy, from top to bottom.
    :raises PluginError: matplotlib is not installed.
    :raises PersistenceError: the file cannot be written.
    """
    figure = new_figure(9, 1.4 + 0.6 * len(forecasts))
    axes = figure.add_subplot()
    for bar, (field, color) in enumerate(_BARS.items()):
        places = [row + (bar - 1) * _THICK for row in range(len(forecasts))]
        label = "iteration" if field == "seconds" else f"{field} alone"
        axes.barh(
            places,
            [1e3 * getattr(forecast, field) for forecast in forecasts.values()],
            _THICK,
            color=color,
            label=label,
        )
    for row, forecast in enumerate(forecasts.values()):
        axes.text(
            1e3 * forecast.seconds,
            row - _THICK,
            f" {1e3 * forecast.seconds:.4g} ms: {forecast.bottleneck}",
            va="center",
            fontsize="small",
        )
    axes.set_yticks(range(len(forecasts)), list(forecasts))
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlabel("milliseconds; beside the bar is the bottleneck")
    figure.suptitle(f"Predicted iteration on {topology}, {topology.world} ranks")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(_BARS), frameon=False)
    save_figure(figure, path)


def save_plan_plot(plan: Bucketing, direction: str, path: Path) -> None:
    """Write the drawing. The suffix decides the format (.png, .svg, .pdf).

    :raises PluginError: matplotlib is not installed.
    :raises PersistenceError: the file cannot be written.
    """
    figure = new_figure(10, 2.4)
    axes = figure.add_subplot()
    rows = {"pull": ("pull", "forward"), "push": ("push", "backward")}[direction]
    for number, ((first, last), times) in enumerate(zip(plan.batches, plan.schedule, strict=True)):
        for row, (begin, end) in enumerate((times[:2], times[2:])):
            begin, end = 1e3 * begin, 1e3 * end
            axes.broken_barh([(begin, end - begin)], (row - 0.4, 0.8), facecolors=f"C{number % 10}", edgecolor="white")
            axes.text(
                (begin + end) / 2, row, f"{first}-{last}", ha="center", va="center", fontsize="small", clip_on=True
            )
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds; numbers are layers")
    axes.set_title(
        f"{direction}: {len(plan.batches)} batches, {1e3 * plan.predicted_seconds:.4g} ms,"
        f" {plan.optimal_ratio:.3f} x the optimum"
    )
    save_figure(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure. ``width`` and ``height`` are in inches.

    :raises PluginError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise PluginError("--plot needs matplotlib: pip install sparkdl_comm[demo]") from exc
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure to ``path``. The suffix decides the format (.png, .svg, .pdf).

    :raises PersistenceError: the file cannot be written.
    """
    try:
        figure.savefig(path)
    except (OSError, ValueError) as exc:
        raise PersistenceError(f"--plot {path}: {exc}") from exc
