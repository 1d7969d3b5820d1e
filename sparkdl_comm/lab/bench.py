"""The core that all programs `python/bench_*.py` share: repeat, verify, compare with theory, report.

A suite calls :func:`measure` with what it compares, makes a :class:`Row` of each result and adds it to a
:class:`Report`, which shows it and at the end gives the exit status: a row whose result was not verified makes it 1.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal, TextIO, TypeVar

from sparkdl_comm.errors import InputError

Compute = Literal["real", "emulated"]
R = TypeVar("R")


#: The fields that the JSON of every row of every suite has, in their order.
FIELDS = (
    "suite",
    "case",
    "algorithm",
    "topology",
    "rate_mbit",
    "world",
    "bytes",
    "seconds",
    "spread",
    "theory_seconds",
    "ratio",
    "verified",
    "compute",
    "versions",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result: the median of `samples`, the seconds of the timed repeats. Its JSON has FIELDS, then what `extra` adds.

    `case`: what is measured, such as an operation or a network. `topology`: as `sparkdl_comm.topology` writes it, or
    "loopback". `rate_mbit`: of each link, per direction; None: not limited. `world`: ranks. `bytes`: of the buffer that a
    collective works on, or that a step moves over the network. `theory_seconds`: a lower bound, None where none is stated.
    `verified`: the result of every timed repeat was compared with what it must be, and was that. `compute`: "emulated" if
    layers only waited (see `sparkdl_comm.lab.emulated`). `versions`: of what was measured.

    Raises InputError without a sample, for times that are not positive, and if `extra` has one of FIELDS.
    """

    suite: str
    case: str
    algorithm: str
    topology: str
    rate_mbit: float | None
    world: int
    bytes: int
    samples: Sequence[float]
    theory_seconds: float | None = None
    verified: bool
    compute: Compute = "real"
    versions: Mapping[str, str]
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"{self.suite} {self.case} {self.algorithm}"
        if not self.samples or min(self.samples) <= 0:
            raise InputError(f"{where}: the times must be positive, and at least one, not {self.samples}")
        if self.theory_seconds is not None and self.theory_seconds <= 0:
            raise InputError(f"{where}: the theory value must be positive, not {self.theory_seconds}")
        if clash := self.extra.keys() & set(FIELDS):
            raise InputError(f"{where}: {sorted(clash)} are fields of every row, not extra ones")

    @property
    def seconds(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """The slowest sample minus the fastest, seconds."""
        return max(self.samples) - min(self.samples)

    @property
    def ratio(self) -> float | None:
        return None if self.theory_seconds is None else self.seconds / self.theory_seconds

    def as_dict(self) -> dict[str, Any]:
        """The row as it is in the JSON."""
        return {name: getattr(self, name) for name in FIELDS} | dict(self.extra)


def measure(cases: Mapping[str, Callable[[], R]], *, warmup: int, repeats: int) -> dict[str, list[R]]:
    """Runs every case `warmup` times, then `repeats` times, all cases in turn, so that a disturbance hits them alike.

    Returns what the timed runs returned, by case.
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
    """The least time of an all-reduce of `nbytes` over one link per rank: 2 (N-1)/N x bytes / rate."""
    return 2 * (world - 1) / world * nbytes * 8 / (rate_mbit * 1e6)


def broadcast_seconds(nbytes: int, rate_mbit: float) -> float:
    """The least time of a broadcast over one link per rank: every rank must receive all bytes once."""
    return nbytes * 8 / (rate_mbit * 1e6)


def per_gigabyte(world: int, nbytes: int, seconds: float, cpu_seconds: float) -> dict[str, float]:
    """What an all-reduce without links is measured by: bus bandwidth (GB/s, 10^9 bytes that a rank must send and receive), and
    CPU seconds of all ranks for a GB of what they all must send."""
    moved = 2 * (world - 1) / world * nbytes / 1e9
    return {"bus_gb_per_s": moved / seconds, "cpu_s_per_gb": cpu_seconds / (world * moved)}


def versions(*distributions: str) -> dict[str, str]:
    """Versions of Python, the kernel and the named Python distributions, those installed."""
    found = {"python": platform.python_version(), "linux": platform.release()}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


class Report:
    """Shows rows on the terminal as they come; then prints them as JSON and gives the exit status.

    With `as_json` the table goes to standard error and the JSON to standard output; else the table to standard output.
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

    def __init__(self, *, as_json: bool, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._json = as_json
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self.rows: list[Row] = []

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
        """A line beside the table, such as why something was skipped."""
        print(text, file=self._err, flush=True)

    def finish(self) -> int:
        """Prints the JSON, if asked for. Returns the exit status: 1 if a row is not verified or there is none, else 0."""
        if self._json:
            print(json.dumps([row.as_dict() for row in self.rows], indent=1), file=self._out, flush=True)
        if not self.rows:
            self.note("nothing was measured")
            return 1
        wrong = [f"{row.case} {row.algorithm}" for row in self.rows if not row.verified]
        if wrong:
            self.note(f"not verified: {', '.join(wrong)}")
        return 1 if wrong else 0

    def _show(self, cells: Iterable[str], more: str = "") -> None:
        texts = (f"{cell:{form}}" for cell, (_, form) in zip(cells, self._COLUMNS, strict=True))
        print("  ".join(texts), more, file=self._err if self._json else self._out, flush=True)


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all suites have: `--quick`, `--json`, `--repeats`, `--warmup`."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--repeats", type=positive, default=3, help="timed runs of each case; the median counts")
    made.add_argument("--warmup", type=int, default=1, help="runs of each case before these")
    made.add_argument("--quick", action="store_true", help="one small run of each: does it work?")
    made.add_argument("--json", action="store_true", help="JSON rows on standard output, the table on standard error")
    return made


def positive(text: str) -> int:
    """An argument that must be a whole number, at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _digits(seconds: float) -> str:
    return f"{seconds:.4g}"


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{key} {_short(inner)}" for key, inner in value.items() if inner) + "}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
