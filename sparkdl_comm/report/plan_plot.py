"""Drawing of a bucketing: transfers and computation over time."""

from __future__ import annotations

from pathlib import Path

from sparkdl_comm.jvm.planner import Bucketing
from sparkdl_comm.report.drawing import new_figure, save_figure


def save_plot(plan: Bucketing, direction: str, path: Path) -> None:
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
