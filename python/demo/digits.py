"""Parts that the demos share: the split of scikit-learn's handwritten digits, the options, and the final summary."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

TEST_ROWS = 360
SPLIT_SEED = 1998
#: Fields of the training's summary that the demo's summary repeats.
_TOLD = ("strategy", "iterations", "seconds_per_iteration", "iterations_per_second", "phases", "bytes")


def split(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the training rows and of the test rows, both shuffled. All calls return the same split."""
    order = np.random.default_rng(SPLIT_SEED).permutation(rows)
    return order[TEST_ROWS:], order[:TEST_ROWS]


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all demos share: ``--output``, ``--epochs`` and ``--learning-rate``."""
    made = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    made.add_argument("--output", type=Path, required=True, help="directory for the model and summary.json")
    made.add_argument("--epochs", type=int, default=12)
    made.add_argument("--learning-rate", type=float, default=1e-3)
    return made


def tell(network: str, trained: Mapping[str, Any], accuracy: float, spark_version: str, output: Path) -> None:
    """Print a summary of the demo, and write it to ``output``/summary.json.

    :param network: name and size of the network. It is printed, but not written to the file.
    :param trained: summary of the training.
    :param accuracy: accuracy of the saved model on the test rows.
    """
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
