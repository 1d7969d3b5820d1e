"""Folders for rows on an executor's local disk, bounded in bytes over all ranks and fits that use it::

    <Spark's local directory>/sparkdl-rows/
        lock                 held by the process that looks at folders or changes which there are
        writing-<token>/     of a rank that runs
        <name>/              kept for later fits
            lock             shared by those who use the folder; nobody removes it meanwhile
            claimed-<gang>   a rank of this gang uses it
            bytes            how many the folder may take; its time of change is when it was last used

Spark removes its local directories when the executor ends. What a killed rank leaves in them nobody holds a lock on: the next
rank that needs space removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkdl_comm.errors import PersistenceError

LIMIT_KEY = "spark.sparkdl.comm.data.cacheLimit"

_WRITING = "writing-"
#: How long other ranks may look at the folders.
_LOCK_SECONDS = 60.0
#: Share of the disk that is left to others, Spark's shuffles above all.
_LEFT = 0.05


class Folder:
    """One rank's folder; :meth:`close` ends its use, and removes it unless it is kept."""

    def __init__(self, disk: LocalDisk, path: Path, claim: Path | None = None) -> None:
        """``claim``: a file that is removed at the end. To be called while nobody else looks at the folders."""
        self._disk, self.path, self._claim = disk, path, claim
        self._kept = claim is not None
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def reserve(self, size: int) -> None:
        """Makes room: the folder may take ``size`` bytes in all from now on.

        :raises PersistenceError: not within the limit, or not on the disk, whatever is removed.
        :raises OSError: the disk cannot be used.
        """
        self._disk.reserve(self.path, size)

    def keep(self, name: str) -> None:
        """Leaves the folder to later fits, as ``name``, which no other has had."""
        with self._disk.locked():
            self.path = self.path.rename(self.path.with_name(name))
        self._kept = True

    def close(self) -> None:
        """May be repeated."""
        if not self._kept:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._claim is not None:
            with contextlib.suppress(OSError):
                self._claim.unlink(missing_ok=True)
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


class LocalDisk:
    """The folders in ``directory``, which is there; together they take ``limit`` bytes at most."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._root, self._limit = directory / "sparkdl-rows", limit

    @classmethod
    def of_executor(cls, limit: int) -> LocalDisk:
        """In the one of Spark's local directories that lies on the largest disk."""
        named = [Path(each) for each in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if each]
        there = [each for each in named if each.is_dir()] or [Path(tempfile.gettempdir())]
        return cls(max(there, key=lambda each: shutil.disk_usage(each).total), limit)

    def write(self) -> Folder:
        """A new folder.

        :raises OSError: it cannot be made.
        """
        self._root.mkdir(mode=0o700, exist_ok=True)
        with self.locked():
            path = self._root / (_WRITING + secrets.token_hex(8))
            path.mkdir(mode=0o700)
            (path / "bytes").write_text("0")
            return Folder(self, path)

    def claim(self, name: str, attempt: str) -> Folder | None:
        """One of the folders that were kept as ``<name>-…``, which no other caller with the same ``attempt`` has; None: there
        is none.

        :raises OSError: it cannot be opened.
        """
        if not self._root.is_dir():
            return None
        with self.locked():
            for path in sorted(self._folders()):
                claim = path / f"claimed-{attempt}"
                if path.name.rpartition("-")[0] == name and not claim.exists():
                    claim.touch()
                    os.utime(path / "bytes")
                    return Folder(self, path, claim)
        return None

    def reserve(self, path: Path, size: int) -> None:
        """For :meth:`Folder.reserve`."""
        with self.locked():
            sizes = {each: _size(each) for each in self._folders()}
            more = size - sizes.pop(path, 0)
            if more > 0:
                self._make_room(sizes, size, more)
            (path / "bytes").write_text(str(size))

    def _make_room(self, others: dict[Path, int], size: int, more: int) -> None:
        """Removes what nobody uses, the oldest first, what killed ranks left before all else, until ``more`` bytes fit."""
        usage = shutil.disk_usage(self._root)
        free = usage.free - int(_LEFT * usage.total)
        taken = sum(others.values())
        for path in sorted(others, key=_age):
            if not path.name.startswith(_WRITING) and taken + size <= self._limit and more <= free:
                break
            if _remove(path):
                taken, free = taken - others[path], free + others[path]
        if taken + size > self._limit:
            raise PersistenceError(
                f"{size + taken} bytes of rows are more than {LIMIT_KEY}={self._limit} allows for an executor"
                f" ({taken} are in use by other ranks)"
            )
        if more > free:
            raise PersistenceError(
                f"{self._root} has no room for {more} more bytes: {usage.free} are free, and {_LEFT:.0%} of the disk is left"
                " to others"
            )

    def _folders(self) -> list[Path]:
        return [path for path in self._root.iterdir() if path.is_dir()]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else looks at the folders, or changes which there are.

        :raises PersistenceError: others take too long.
        """
        descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not _try_lock(descriptor, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise PersistenceError(f"other processes held {self._root / 'lock'} for {_LOCK_SECONDS:g} s")
                time.sleep(0.01)
            yield
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size(path: Path) -> int:
    try:
        return int((path / "bytes").read_text() or 0)
    except (FileNotFoundError, ValueError):  # it is being removed, or its rank was killed just then
        return 0


def _age(path: Path) -> tuple[bool, float]:
    """To sort by: what ranks write, of which some may be dead, then the others by their last use."""
    try:
        return not path.name.startswith(_WRITING), (path / "bytes").stat().st_mtime
    except FileNotFoundError:
        return False, 0.0


def _remove(path: Path) -> bool:
    """Removes a folder unless somebody uses it."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path / "lock", os.O_RDWR)
        try:
            if not _try_lock(descriptor, fcntl.LOCK_EX):
                return False
            shutil.rmtree(path, ignore_errors=True)
            return True
        finally:
            os.close(descriptor)
    shutil.rmtree(path, ignore_errors=True)  # without a lock file: its rank was killed before it made one
    return True
