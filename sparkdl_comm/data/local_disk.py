"""Folders for rows on an executor's local disk, limited in bytes over all ranks and fits that share it::

    <Spark's local directory>/sparkdl-rows/
        lock                 held by a process while it lists, adds or removes folders
        writing-<token>/     of a running rank
        <name>/              kept for later fits
            lock             shared by the users of the folder, which protects it from removal
            claimed-<gang>   marks that a rank of this gang uses the folder
            bytes            bytes that the folder may take; its modification time is the folder's last use

Spark removes its local directories when the executor ends. A killed rank's folders stay until then, without a lock. The
next rank that needs space removes them.
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

_WRITING_PREFIX = "writing-"
#: Seconds to wait for the lock.
_LOCK_SECONDS = 60.0
#: Share of the disk left free for others, mainly Spark's shuffles.
_RESERVED_SHARE = 0.05


class Folder:
    """Folder of one rank. :meth:`close` ends its use, and removes it unless it is kept."""

    def __init__(self, disk: LocalDisk, path: Path, claim: Path | None = None) -> None:
        """Lock the folder. The caller holds :meth:`LocalDisk.lock`. ``claim``: a file that :meth:`close` removes."""
        self._disk, self.path, self._claim = disk, path, claim
        self._is_kept = claim is not None
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def reserve(self, size_bytes: int) -> None:
        """Make room so that the folder may take ``size_bytes`` in total.

        :raises PersistenceError: the limit or the disk is too small, even after removing unused folders.
        :raises OSError: the disk cannot be used.
        """
        self._disk.reserve(self.path, size_bytes)

    def keep(self, name: str) -> None:
        """Leave the folder to later fits as ``name``, which must be new."""
        with self._disk.lock():
            self.path = self.path.rename(self.path.with_name(name))
        self._is_kept = True

    def close(self) -> None:
        """End the use of the folder. May be called again."""
        if not self._is_kept:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._claim is not None:
            with contextlib.suppress(OSError):
                self._claim.unlink(missing_ok=True)
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


class LocalDisk:
    """Folders in ``directory``, which exists. Together they take at most ``limit_bytes``."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._root, self._limit_bytes = directory / "sparkdl-rows", limit_bytes

    @classmethod
    def of_executor(cls, limit_bytes: int) -> LocalDisk:
        """Return the disk of this executor: Spark's local directory on the largest file system."""
        configured = [Path(path) for path in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if path]
        existing = [path for path in configured if path.is_dir()] or [Path(tempfile.gettempdir())]
        return cls(max(existing, key=lambda path: shutil.disk_usage(path).total), limit_bytes)

    def create_folder(self) -> Folder:
        """Create a folder.

        :raises OSError: it cannot be created.
        """
        self._root.mkdir(mode=0o700, exist_ok=True)
        with self.lock():
            path = self._root / (_WRITING_PREFIX + secrets.token_hex(8))
            path.mkdir(mode=0o700)
            (path / "bytes").write_text("0")
            return Folder(self, path)

    def claim(self, name: str, attempt: str) -> Folder | None:
        """Claim a folder that was kept as ``<name>-…``, or return None.

        Callers with the same ``attempt`` get different folders.

        :raises OSError: the folder cannot be opened.
        """
        if not self._root.is_dir():
            return None
        with self.lock():
            for path in sorted(self._folders()):
                claim = path / f"claimed-{attempt}"
                if path.name.rpartition("-")[0] == name and not claim.exists():
                    claim.touch()
                    os.utime(path / "bytes")
                    return Folder(self, path, claim)
        return None

    def reserve(self, path: Path, size_bytes: int) -> None:
        """Make room for :meth:`Folder.reserve`."""
        with self.lock():
            sizes = {folder: _reserved_bytes(folder) for folder in self._folders()}
            more_bytes = size_bytes - sizes.pop(path, 0)
            if more_bytes > 0:
                self._make_room(sizes, size_bytes, more_bytes)
            (path / "bytes").write_text(str(size_bytes))

    def _make_room(self, other_sizes: dict[Path, int], size_bytes: int, more_bytes: int) -> None:
        """Remove unused folders until ``more_bytes`` fit: first folders of killed ranks, then the least recently used."""
        usage = shutil.disk_usage(self._root)
        free_bytes = usage.free - int(_RESERVED_SHARE * usage.total)
        used_bytes = sum(other_sizes.values())
        for path in sorted(other_sizes, key=_removal_order):
            if (
                not path.name.startswith(_WRITING_PREFIX)
                and used_bytes + size_bytes <= self._limit_bytes
                and more_bytes <= free_bytes
            ):
                break
            if _remove(path):
                used_bytes, free_bytes = used_bytes - other_sizes[path], free_bytes + other_sizes[path]
        if used_bytes + size_bytes > self._limit_bytes:
            raise PersistenceError(
                f"{size_bytes + used_bytes} bytes of rows exceed {LIMIT_KEY}={self._limit_bytes}, the limit of an executor"
                f" ({used_bytes} are in use by other ranks)"
            )
        if more_bytes > free_bytes:
            raise PersistenceError(
                f"{self._root} has no room for {more_bytes} more bytes: {usage.free} are free, and"
                f" {_RESERVED_SHARE:.0%} of the disk is left to others"
            )

    def _folders(self) -> list[Path]:
        return [path for path in self._root.iterdir() if path.is_dir()]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock: no other process lists, adds or removes folders meanwhile.

        :raises PersistenceError: other processes hold it for too long.
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


def _reserved_bytes(path: Path) -> int:
    try:
        return int((path / "bytes").read_text() or 0)
    except (FileNotFoundError, ValueError):  # the folder is being removed, or its rank was killed while writing
        return 0


def _removal_order(path: Path) -> tuple[bool, float]:
    """Return a sort key: folders being written first (their rank may be dead), then the others by last use."""
    try:
        return not path.name.startswith(_WRITING_PREFIX), (path / "bytes").stat().st_mtime
    except FileNotFoundError:
        return False, 0.0


def _remove(path: Path) -> bool:
    """Remove a folder unless somebody uses it. Return whether it was removed."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path / "lock", os.O_RDWR)
        try:
            if not _try_lock(descriptor, fcntl.LOCK_EX):
                return False
            shutil.rmtree(path, ignore_errors=True)
            return True
        finally:
            os.close(descriptor)
    shutil.rmtree(path, ignore_errors=True)  # no lock file: the rank was killed before it made one
    return True
