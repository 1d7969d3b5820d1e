"""Files of the labs on this machine, in JSON. They show what a killed program has left.

A file is written before the lab's first namespace is made, and removed after the last one is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sparkdl_comm.errors import ConfError, LabError

#: Control networks are 198.18.i.0/24, out of the block that is reserved for benchmarks of networks.
CONTROL_NETWORKS = 256
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


def directory() -> Path:
    """Return the directory of the files, and make it if it is missing.

    It is /run/sparkdl-lab for root, else in the user's runtime directory, else in /tmp.

    :raises LabError: it belongs to another user, whose files could make us remove foreign processes.
    """
    if os.geteuid() == 0:
        path = Path("/run/sparkdl-lab")
    elif os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(os.environ["XDG_RUNTIME_DIR"], "sparkdl-lab")
    else:
        path = Path(f"/tmp/sparkdl-lab-{os.geteuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise LabError(f"{path} must be a directory that only this user can write to: remove it")
    return path


def start_time(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot, or None if it does not run. Process ids are reused."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class State:
    """State of a lab.

    - ``owner``: process that made it and removes it. ``kept``: True if that process does nothing else (``lab up``).
    - ``holder``: see access.py. ``control``: number of its control network. ``mtu``: bytes.
    """

    name: str
    topology: str
    mtu: int
    owner: int
    owner_start: int
    kept: bool
    control: int
    holder: int | None
    holder_start: int | None

    @property
    def alive(self) -> bool:
        """True if its owner still runs."""
        return start_time(self.owner) == self.owner_start

    @property
    def holder_alive(self) -> bool:
        return self.holder is not None and start_time(self.holder) == self.holder_start


def check_name(name: str) -> str:
    """Return ``name``.

    :raises ConfError: no lab can have this name.
    """
    if not _NAME.fullmatch(name):
        raise ConfError(f"lab name {name!r}: must be 1 to 32 of a-z, 0-9 and -, not beginning with -")
    return name


def claim(name: str, topology: str, mtu: int, holder: int | None, kept: bool) -> State:
    """Take the name, and a free control network, for this process.

    :raises LabError: there is a lab of this name, or no control network is free.
    """
    path = _file(check_name(name))
    with _locked():
        taken = {state.control for state in every()}
        free = [index for index in range(CONTROL_NETWORKS) if index not in taken]
        if not free:
            raise LabError(
                f"there are {CONTROL_NETWORKS} labs, as many as there can be: `python/sparkdl-lab down --all`"
            )
        if path.exists():
            raise LabError(_taken(load(name)))
        pid = os.getpid()
        start = start_time(pid)
        assert start is not None
        held = None if holder is None else start_time(holder)
        state = State(name, topology, mtu, pid, start, kept, free[0], holder, held)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(state), indent=2) + "\n")
        part.rename(path)
        return state


def load(name: str) -> State:
    """Return the lab of this name.

    :raises LabError: there is none. The text lists all labs.
    """
    try:
        return State(**json.loads(_file(check_name(name)).read_text()))
    except FileNotFoundError:
        there = ", ".join(state.name for state in every()) or "none"
        raise LabError(f"no lab {name!r}; there are: {there}") from None
    except (ValueError, TypeError) as exc:
        raise LabError(f"{_file(name)} is not a lab's state: {exc}") from exc


def every() -> list[State]:
    """Return all labs of this user, ordered by name."""
    found = []
    for path in sorted(directory().glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            found.append(State(**json.loads(path.read_text())))
    return found


def forget(name: str) -> None:
    _file(name).unlink(missing_ok=True)


def _file(name: str) -> Path:
    return directory() / f"{name}.json"


def _taken(state: State) -> str:
    if state.alive:
        return f"there is a lab {state.name!r} already, of process {state.owner}: use another name"
    return f"there is a lab {state.name!r}, left by process {state.owner}. It is gone: `python/sparkdl-lab down {state.name}`"


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    with open(directory() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held for milliseconds
        yield
