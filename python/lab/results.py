"""Files of results: the measured rows, their code, machine and date.

A file is a JSON object: ``format`` (1), the fields of :class:`Origin`, and ``rows``. A row is an object with FIELDS and the
benchmark's own fields.
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
#: Pathspecs of git for the code that is measured. Files of results are left out: runs write them one after another.
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
#: Fields of every row, in their order, and their types.
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
#: Fields that follow from the samples.
_DERIVED = ("seconds", "spread", "ratio")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Row of results: the median of ``samples``, the seconds of the timed repeats. Its JSON has FIELDS, then ``extra``.

    - ``case``: measured operation, network or the like. ``topology``: text of a topology, or "loopback".
    - ``rate_mbit``: rate of each link, per direction. None: not limited. ``world``: number of ranks.
    - ``bytes``: size of a collective's buffer, or bytes that a step moves over the network.
    - ``theory_seconds``: lower bound, or None.
    - ``verified``: the result of every timed repeat was compared with the expected one, and was right.
    - ``compute``: "emulated" if layers only waited (see ``lab.emulated``).
    - ``versions``: versions of what was measured. Default: of Python and installed packages.

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
        """Slowest sample minus the fastest, seconds."""
        return max(self.samples) - min(self.samples)

    @property
    def ratio(self) -> float | None:
        return None if self.theory_seconds is None else self.seconds / self.theory_seconds

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it is in the JSON."""
        return {name: getattr(self, name) for name in FIELDS} | dict(self.extra)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Origin of results.

    - ``commit``: checked-out commit of this package, 40 hex digits. ``dirty``: True if its code differs from the commit.
      Both are None outside of a checkout of its repository.
    - ``date``: beginning of the run, ISO 8601, UTC. ``command``: the program's command line.
    - ``cores``: number of cores that the process may use.
    - ``load``: load of the last minute before the run, about 0 on a quiet machine.
    - ``versions``: versions of Python and of the installed packages.
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
        """Return the origin of results of this process."""
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
    """Results of a benchmark's run."""

    origin: Origin
    rows: Sequence[Row]

    def to_json(self) -> str:
        document = {"format": FORMAT, **asdict(self.origin), "rows": [row.as_dict() for row in self.rows]}
        return json.dumps(document, indent=1) + "\n"


def read(path: Path) -> Results:
    """Return the results in a file that a benchmark wrote with ``--json FILE``.

    :raises InputError: the file cannot be read, or a field is missing, has another type, or differs from the samples'
        value.
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
    """Return the versions of Python, the kernel, and the named distributions that are installed."""
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
    """Return the commit, and True if code differs from it. Both are None if ``root`` is not this file's checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(Path(__file__).relative_to(_ROOT)))
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", *_CODE))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _command(argv: Sequence[str]) -> str:
    """Return the command line as it is typed in the repository's folder."""
    program = Path(argv[0]).resolve()
    name = program.relative_to(_ROOT) if program.is_relative_to(_ROOT) else program.name
    return shlex.join(["python", str(name), *argv[1:]])


def _cpu(cpuinfo: Path) -> str:
    """Return the model of the CPU, or the architecture if the kernel does not name a model."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
