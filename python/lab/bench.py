"""Core of all benchmarks: repeats, theory and reports.

A suite calls :func:`measure` with the cases that it compares, and makes a :class:`Row` of each result. A :class:`Report`
shows the rows and returns the exit status. Rows and files of results are in :mod:`lab.results`, options in
:mod:`lab.arguments`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeVar

from lab.arguments import STDOUT
from lab.results import Origin, Results, Row, versions
from sparkdl_comm.errors import LabUnavailableError, SparkdlCommError

__all__ = [
    "Report",
    "Row",
    "allreduce_seconds",
    "broadcast_seconds",
    "measure",
    "per_gigabyte",
    "versions",
]

R = TypeVar("R")


def measure(cases: Mapping[str, Callable[[], R]], *, warmup: int, repeats: int) -> dict[str, list[R]]:
    """Run every case ``warmup`` times, then ``repeats`` times. Return the results of these repeats by case.

    Cases run in turn, so a disturbance hits them alike.
    """
    for _ in range(warmup):
        for run in cases.values():
            run()
    results: dict[str, list[R]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, run in cases.items():
            results[name].append(run())
    return results


def allreduce_seconds(world: int, nbytes: int, rate_mbit: float) -> float:
    """Return the minimum seconds of an all-reduce over one link per rank: 2 (N-1)/N x bytes / rate."""
    return 2 * (world - 1) / world * nbytes * 8 / (rate_mbit * 1e6)


def broadcast_seconds(nbytes: int, rate_mbit: float) -> float:
    """Return the minimum seconds of a broadcast over one link per rank: every rank must receive all bytes once."""
    return nbytes * 8 / (rate_mbit * 1e6)


def per_gigabyte(world: int, nbytes: int, seconds: float, cpu_seconds: float) -> dict[str, float]:
    """Return the measures of an all-reduce without links: bus bandwidth and CPU seconds per GB, 10^9 bytes.

    Bus bandwidth counts the bytes that a rank must send. CPU seconds are of all ranks, per GB that they all must send.
    """
    moved = 2 * (world - 1) / world * nbytes / 1e9
    return {"bus_gb_per_s": moved / seconds, "cpu_s_per_gb": cpu_seconds / (world * moved)}


class Report:
    """Table of rows on the terminal, and JSON of the same rows.

    :param json_to: file for the rows and their origin (``lab.results``). STDOUT: the rows alone go to standard output,
        and the table goes to standard error. None: no JSON.
    """

    _COLUMNS = (
        ("suite", "<7"),
        ("case", "<12"),
        ("algorithm", "<16"),
        ("topology", "<9"),
        ("Mbit/s", ">6"),
        ("ranks", ">5"),
        ("bytes", ">11"),
        ("seconds", ">9"),
        ("+-", ">8"),
        ("theory", ">8"),
        ("ratio", ">6"),
        ("result", "<10"),
    )

    def __init__(self, *, json_to: str | None, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._json_to = json_to
        self._origin = None if json_to in (None, STDOUT) else Origin.here()
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self.rows: list[Row] = []
        if self._origin and (self._origin.dirty or self._origin.commit is None):
            self.note("the code that is measured is not that of a commit: tables of pages will refuse this file")

    def add(self, row: Row) -> None:
        if not self.rows:
            self._show([name for name, _ in self._COLUMNS])
        self.rows.append(row)
        self._show(
            [
                row.suite,
                row.case,
                row.algorithm,
                row.topology,
                "-" if row.rate_mbit is None else f"{row.rate_mbit:g}",
                str(row.world),
                f"{row.bytes:,}",
                _digits(row.seconds),
                _digits(row.spread / 2),
                "-" if row.theory_seconds is None else _digits(row.theory_seconds),
                "-" if row.ratio is None else f"{row.ratio:.2f}",
                "ok" if row.verified else "UNVERIFIED",
            ],
            " ".join(f"{name} {_short(value)}" for name, value in row.extra.items()),
        )

    def note(self, text: str) -> None:
        """Print a line beside the table, such as the reason why something was skipped."""
        print(text, file=self._err, flush=True)

    def finish_after(self, rows: Iterable[Row]) -> int:
        """Add rows as they are measured, then finish. Return the exit status.

        It is 0, with a note, if networks cannot be emulated here. Another error of this package ends the rows, and the
        status is 1.
        """
        try:
            for row in rows:
                self.add(row)
        except LabUnavailableError as reason:
            self.note(f"skipped: {reason}")
            return 0
        except SparkdlCommError as error:
            self.note(f"failed: {error}")
            self.finish()
            return 1
        return self.finish()

    def finish(self) -> int:
        """Write the JSON, to a file only if there are rows. Return the exit status.

        It is 1 if there are no rows, or one is not verified.
        """
        if self._json_to == STDOUT:
            print(json.dumps([row.as_dict() for row in self.rows], indent=1), file=self._out, flush=True)
        if not self.rows:
            self.note("nothing was measured")
            return 1
        if self._json_to and self._origin:
            Path(self._json_to).write_text(Results(self._origin, self.rows).to_json())
        wrong = [f"{row.case} {row.algorithm}" for row in self.rows if not row.verified]
        if wrong:
            self.note(f"not verified: {', '.join(wrong)}")
        return 1 if wrong else 0

    def _show(self, cells: Iterable[str], more: str = "") -> None:
        texts = (f"{cell:{form}}" for cell, (_, form) in zip(cells, self._COLUMNS, strict=True))
        print("  ".join(texts), more, file=self._err if self._json_to == STDOUT else self._out, flush=True)


def _digits(seconds: float) -> str:
    return f"{seconds:.4g}"


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{key} {_short(inner)}" for key, inner in value.items() if inner) + "}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
