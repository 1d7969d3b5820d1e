"""Results as data: what a benchmark measured, of which code, where and when. One form for all, written and read here.

A file is a JSON object: ``format`` (1), the fields of :class:`Origin`, and ``rows``, a list of objects with FIELDS and
what else the benchmark tells of a row.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from sparkdl_comm.errors import InputError

FORMAT = 1
_ROOT = Path(__file__).parents[2]
#: What decides what is measured, as pathspecs of git. Files of results are not part of it: runs write them one after another.
_CODE = (
    "sparkdl_comm",
    "python",
    "scala",
    *(f":(exclude)python/benchmarks/*{end}" for end in (".json", ".md", ".svg")),
)
_PACKAGES = ("sparkdl_comm", "torch", "numpy", "pyspark", "pandas", "pyarrow")
_GIT_SECONDS = 30

Compute = Literal["real", "emulated"]

_NUMBER = (int, float)
_NONE = type(None)
#: The fields that every row of every suite has, in their order, and their types.
_ROW_TYPES: dict[str, tuple[type, ...]] = {
    "suite": (str,),
    "case": (str,),
    "algorithm": (str,),
    "topology": (str,),
    "rate_mbit": (*_NUMBER, _NONE),
    "world": (int,),
    "bytes": (int,),
    "seconds": _NUMBER,
    "spread": _NUMBER,
    "samples": (list,),
    "theory_seconds": (*_NUMBER, _NONE),
    "ratio": (*_NUMBER, _NONE),
    "verified": (bool,),
    "compute": (str,),
    "versions": (dict,),
}
FIELDS = tuple(_ROW_TYPES)
#: Those that a row reckons from its samples.
_DERIVED = ("seconds", "spread", "ratio")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result: the median of ``samples``, the seconds of the timed repeats. Its JSON has FIELDS, then what ``extra`` adds.

    ``case``: what is measured, such as an operation or a network. ``topology``: as ``sparkdl_comm.topology`` writes it, or
    "loopback". ``rate_mbit``: of each link, per direction; None: not limited. ``world``: ranks. ``bytes``: of the buffer that
    a collective works on, or that a step moves over the network. ``theory_seconds``: a lower bound, None where none is stated.
    ``verified``: the result of every timed repeat was compared with what it must be, and was that. ``compute``: "emulated" if
    layers only waited (see ``lab.emulated``). ``versions``: of what was measured; default: of Python and of
    installed packages.

    :raises InputError: no sample, times that are not positive, or ``extra`` has one of FIELDS.
    """

    suite: str
    case: str
    algorithm: str
    topology: str = "loopback"
    rate_mbit: float | None = None
    world: int
    bytes: int
    samples: Sequence[float]
    theory_seconds: float | None = None
    verified: bool
    compute: Compute = "real"
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"{self.suite} {self.case} {self.algorithm}"
        if not self.samples or not all(0 < sample < math.inf for sample in self.samples):
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


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where results come from.

    ``commit``: what is checked out where this package lies, 40 hex digits; ``dirty``: whether its code differs from that
    commit. Both are None where the package is not in a checkout of its repository. ``date``: when the run began, ISO 8601,
    UTC.
    ``command``: the program's command line. ``cores``: that the process may use. ``load``: of the last minute before the run;
    about 0 on a quiet machine. ``versions``: of Python and of the packages that are installed.
    """

    commit: str | None
    dirty: bool | None
    date: str
    command: str
    cpu: str
    cores: int
    kernel: str
    load: float
    versions: Mapping[str, str]

    @classmethod
    def here(cls) -> Origin:
        """Of this process, now."""
        commit, dirty = _checkout(_ROOT)
        return cls(
            commit=commit,
            dirty=dirty,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=_command(sys.argv),
            cpu=_cpu(Path("/proc/cpuinfo")),
            cores=len(os.sched_getaffinity(0)),
            kernel=platform.release(),
            load=os.getloadavg()[0],
            versions=versions(),
        )


@dataclass(frozen=True)
class Results:
    """What one run of a benchmark measured."""

    origin: Origin
    rows: Sequence[Row]

    def to_json(self) -> str:
        document = {"format": FORMAT, **asdict(self.origin), "rows": [row.as_dict() for row in self.rows]}
        return json.dumps(document, indent=1) + "\n"


def read(path: Path) -> Results:
    """The results in a file that a benchmark wrote with ``--json FILE``.

    :raises InputError: there is no such file, or it has not the form that is written here: says which field of which row
        is missing, of another type, or does not agree with the samples.
    """
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no results could be read: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(
            f"{path}: must be a JSON object with format {FORMAT}, as `--json FILE` of a benchmark writes it"
        )
    if unknown := document.keys() - {"format", "rows", *_ORIGIN_TYPES}:
        raise InputError(f"{path}: unknown fields {', '.join(sorted(unknown))}")
    origin = {name: _field(document, name, types, str(path)) for name, types in _ORIGIN_TYPES.items()}
    rows = _field(document, "rows", (list,), str(path))
    return Results(Origin(**origin), [_row(found, f"{path}: row {number}") for number, found in enumerate(rows)])


def versions(distributions: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Versions of Python, the kernel and the named Python distributions, those installed."""
    found = {"python": platform.python_version(), "linux": platform.release()}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


_ORIGIN_TYPES: dict[str, tuple[type, ...]] = {
    "commit": (str, _NONE),
    "dirty": (bool, _NONE),
    "date": (str,),
    "command": (str,),
    "cpu": (str,),
    "cores": (int,),
    "kernel": (str,),
    "load": _NUMBER,
    "versions": (dict,),
}


def _field(found: Mapping[str, Any], name: str, types: tuple[type, ...], where: str) -> Any:
    if name not in found:
        raise InputError(f"{where}: the field {name!r} is missing")
    value = found[name]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise InputError(f"{where}: {name!r} must be {' or '.join(kind.__name__ for kind in types)}, not {value!r}")
    return value


def _row(found: object, where: str) -> Row:
    if not isinstance(found, dict):
        raise InputError(f"{where} must be an object, not {found!r}")
    values = {name: _field(found, name, types, where) for name, types in _ROW_TYPES.items()}
    told = {name: values.pop(name) for name in _DERIVED}
    if any(not isinstance(sample, _NUMBER) or isinstance(sample, bool) for sample in values["samples"]):
        raise InputError(f"{where}: 'samples' must be numbers, not {values['samples']!r}")
    row = Row(**values, extra={name: value for name, value in found.items() if name not in FIELDS})
    for name, value in told.items():
        reckoned = getattr(row, name)
        if (value is None) != (reckoned is None) or (value is not None and not math.isclose(value, reckoned)):
            raise InputError(f"{where}: {name!r} is {value!r}, but its samples make {reckoned!r}")
    return row


def _checkout(root: Path) -> tuple[str | None, bool | None]:
    """The commit and whether code differs from it; None, None if ``root`` is not the checkout that this file is tracked in."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(Path(__file__).relative_to(_ROOT)))
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", *_CODE))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _command(argv: Sequence[str]) -> str:
    """As one types it in the repository, whatever folder the program was started from."""
    program = Path(argv[0]).resolve()
    name = program.relative_to(_ROOT) if program.is_relative_to(_ROOT) else program.name
    return shlex.join(["python", str(name), *argv[1:]])


def _cpu(cpuinfo: Path) -> str:
    """The model of the CPU; of some architectures the kernel tells none, then only the architecture."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
