"""Figures for the option ``--plot`` of the commands. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkdl_comm.errors import PersistenceError, PluginError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
