"""Drawing of predicted iterations: total time, computing alone and communication alone, by strategy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sparkdl_comm.report.drawing import new_figure, save_figure
from sparkdl_comm.sim.forecast import Forecast
from sparkdl_comm.topology import Topology

#: Fields of a forecast, from top to bottom, and their colors.
_BARS = {"seconds": "tab:blue", "computing": "tab:green", "communication": "tab:orange"}
_THICK = 0.8 / len(_BARS)


def save_plot(forecasts: Mapping[str, Forecast], topology: Topology, path: Path) -> None:
    """Write the drawing. The suffix decides the format (.png, .svg, .pdf).

    :param found: forecasts by strategy, from top to bottom.
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
