"""What the demos have in common: how scikit-learn's handwritten digits are split, the options, and what is told in the end."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

TEST_ROWS = 360
SPLIT_SEED = 1998
#: What the summary of a training tells, and that of the demo too.
_TOLD = ("strategy", "iterations", "seconds_per_iteration", "iterations_per_second", "phases", "bytes")


def split(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows are for training and which for testing, in the order in which to take them; the same split every time."""
    order = np.random.default_rng(SPLIT_SEED).permutation(rows)
    return order[TEST_ROWS:], order[:TEST_ROWS]


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the options of all demos: ``--output``, ``--epochs``, ``--learning-rate``."""
    made = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    made.add_argument("--output", type=Path, required=True, help="directory for the model and summary.json")
    made.add_argument("--epochs", type=int, default=12)
    made.add_argument("--learning-rate", type=float, default=1e-3)
    return made


def tell(network: str, trained: Mapping[str, Any], accuracy: float, spark_version: str, output: Path) -> None:
    """Writes ``output``/summary.json, and prints it. ``network``: its name and what there is to say of it; ``trained``: the
    summary of its training; ``accuracy``: on the test rows, of the saved model."""
    summary = {name: trained[name] for name in _TOLD}
    summary |= {"executors": trained["world"], "spark_version": spark_version, "accuracy": accuracy}
    (output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    phases = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in summary["phases"].items())
    moved = ", ".join(f"{name} {count / 1e6:.0f} MB" for name, count in summary["bytes"].items())
    print(
        f"\n{network}, strategy {summary['strategy']}, Spark {spark_version}, {summary['executors']} executors\n"
        f"  test accuracy        {accuracy:.4f} (of the saved model, loaded again)\n"
        f"  iterations           {summary['iterations']}, {summary['iterations_per_second']:.1f} per second\n"
        f"  time per iteration   {summary['seconds_per_iteration'] * 1e3:.1f} ms\n"
        f"    by phase, ms       {phases}\n"
        f"  over the network     {moved} (all ranks, whole run)"
    )
