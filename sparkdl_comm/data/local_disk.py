"""Folders for rows on an executor's local disk, limited in bytes over all ranks and fits that share it.

Layout::

    <directory>/sparkdl-rows/
        lock                 held by a process while it lists, adds or removes folders
        .writing-<token>/    of a running rank
        <name>-<rank>/       kept for later fits, as a part of the cache <name>
            lock             shared by the users of the folder, which protects it from removal
            bytes            bytes that the folder may take; its modification time is the folder's last use

The directory is Spark's local directory, which Spark removes when the executor ends, or ``data.cacheDir`` if the rows
are kept for later fits. Only the user can open ``sparkdl-rows``. A killed rank's folder stays, without a lock. The next
rank that needs space removes it. The command ``sparkdl-comm cache`` lists and removes the folders that are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from sparkdl_comm.errors import ConfError, PersistenceError, nearest

LIMIT_KEY = "spark.sparkdl.comm.data.cacheLimit"

#: Names of caches do not begin with a dot.
_WRITING_PREFIX = ".writing-"
#: Seconds to wait for the lock.
_LOCK_SECONDS = 60.0
#: Share of the disk left free for others, mainly Spark's shuffles.
_RESERVED_SHARE = 0.05


class Folder:
    """Folder of one rank. :meth:`close` ends its use, and removes it unless it is kept."""

    def __init__(self, disk: LocalDisk, path: Path, is_kept: bool = False) -> None:
        """Lock the folder. The caller holds :meth:`LocalDisk.lock`."""
        self._disk, self.path, self._is_kept = disk, path, is_kept
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def reserve(self, size_bytes: int) -> None:
        """Make room so that the folder may take ``size_bytes`` in total.

        :raises PersistenceError: the limit or the disk is too small, even after removing unused folders.
        :raises OSError: the disk cannot be used.
        """
        self._disk.reserve(self.path, size_bytes)

    def keep(self, name: str, rank: int) -> bool:
        """Leave the folder to later fits, as the part of ``rank`` of the cache ``name``.

        Replaces an earlier folder of this part. Returns False if that is in use.

        :raises OSError: the disk cannot be used.
        """
        for file in self.path.iterdir():
            file.chmod(0o600)
        with self._disk.lock():
            target = self.path.with_name(f"{name}-{rank}")
            if not _remove(target):
                return False
            self.path = self.path.rename(target)
        self._is_kept = True
        return True

    def close(self) -> None:
        """End the use of the folder. May be called again."""
        if not self._is_kept:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


class LocalDisk:
    """Folders in ``directory``. Together they take at most ``limit_bytes``. ``root``: the directory that has them."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.root, self._limit_bytes = directory / "sparkdl-rows", limit_bytes

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
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_root()
        with self.lock():
            path = self.root / (_WRITING_PREFIX + secrets.token_hex(8))
            path.mkdir(mode=0o700)
            (path / "bytes").write_text("0")
            return Folder(self, path)

    def parts(self) -> dict[str, dict[int, Path]]:
        """Return the folders of all caches, by name and rank.

        :raises OSError: the disk cannot be used.
        """
        found: dict[str, dict[int, Path]] = {}
        if self.root.exists():
            self._check_root()
            for path in sorted(self._folders()):
                name, _, rank = path.name.rpartition("-")
                if not path.name.startswith(_WRITING_PREFIX) and rank.isdecimal():
                    found.setdefault(name, {})[int(rank)] = path
        return found

    def open_part(self, name: str, rank: int) -> Folder:
        """Open the folder of ``rank`` of the cache ``name``.

        :raises OSError: it is gone, or the disk cannot be used.
        """
        with self.lock():
            folder = Folder(self, self.root / f"{name}-{rank}", is_kept=True)
            (folder.path / "bytes").touch(mode=0o600)
        return folder

    def remove(self, name: str) -> list[int]:
        """Remove the cache ``name``. Return the ranks whose parts are in use, and stay.

        :raises OSError: the disk cannot be used.
        """
        with self.lock():
            return [rank for rank, path in self.parts().get(name, {}).items() if not _remove(path)]

    def _check_root(self) -> None:
        found = self.root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PersistenceError(
                f"{self.root} is not a directory that only user {os.geteuid()} can open. Remove it, or set"
                " spark.sparkdl.comm.data.cacheDir to another directory"
            )

    def reserve(self, path: Path, size_bytes: int) -> None:
        """Make room for :meth:`Folder.reserve`."""
        with self.lock():
            sizes = {folder: reserved_bytes(folder) for folder in self._folders()}
            more_bytes = size_bytes - sizes.pop(path, 0)
            if more_bytes > 0:
                self._make_room(sizes, size_bytes, more_bytes)
            (path / "bytes").write_text(str(size_bytes))

    def _make_room(self, other_sizes: dict[Path, int], size_bytes: int, more_bytes: int) -> None:
        """Remove unused folders until ``more_bytes`` fit: first folders of killed ranks, then the least recently used."""
        usage = shutil.disk_usage(self.root)
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
                f"{self.root} has no room for {more_bytes} more bytes: {usage.free} are free, and"
                f" {_RESERVED_SHARE:.0%} of the disk is left to others"
            )

    def _folders(self) -> list[Path]:
        return [path for path in self.root.iterdir() if path.is_dir()]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock: no other process lists, adds or removes folders meanwhile.

        :raises PersistenceError: other processes hold it for too long.
        """
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not _try_lock(descriptor, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise PersistenceError(f"other processes held {self.root / 'lock'} for {_LOCK_SECONDS:g} s")
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


def reserved_bytes(path: Path) -> int:
    """Return the bytes that a folder may take."""
    try:
        return int((path / "bytes").read_text() or 0)
    except (FileNotFoundError, ValueError):  # the folder is being removed, or its rank was killed while writing
        return 0


def last_use(path: Path) -> float:
    """Return when a folder was used last, in seconds since the epoch. 0: it is being removed."""
    try:
        return (path / "bytes").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _removal_order(path: Path) -> tuple[bool, float]:
    """Return a sort key: folders being written first (their rank may be dead), then the others by last use."""
    return not path.name.startswith(_WRITING_PREFIX), last_use(path)


def _remove(path: Path) -> bool:
    """Remove a folder unless somebody uses it. Return whether it is gone."""
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


def add_parser(commands: Any) -> None:
    """Add the command ``cache``."""
    cache = commands.add_parser(
        "cache",
        help="list or remove the caches of rows on this host",
        description="Caches that fits with data.cacheName have left on this host. Other hosts have other parts of them.",
    )
    cache.add_argument("--dir", help="spark.sparkdl.comm.data.cacheDir of the fits. Default: that of the key")
    actions = cache.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="name, bytes, last use, and ranks with rows here, of each cache")
    listing.set_defaults(call=_run, name=None)
    removal = actions.add_parser("remove", help="remove a cache from this host")
    removal.add_argument("name", help="of the cache")
    removal.set_defaults(call=_run)


def _run(options: argparse.Namespace) -> int:
    from sparkdl_comm.conf import CommConf

    conf = CommConf.from_mapping({}, data_cache_dir=options.dir)
    disk = LocalDisk(Path(conf.data.cache_dir).expanduser(), conf.data.cache_limit)
    caches = disk.parts()
    if options.name is None:
        print(f"{len(caches)} caches in {disk.root}")
        for name, parts in sorted(caches.items()):
            size = sum(map(reserved_bytes, parts.values())) / 1e6
            used = datetime.fromtimestamp(max(map(last_use, parts.values()))).isoformat(" ", "minutes")
            print(f"{name:<24} {size:>10.1f} MB  used {used}  ranks {', '.join(map(str, sorted(parts)))}")
        return 0
    if options.name not in caches:
        raise ConfError(f"there is no cache {options.name!r} in {disk.root}{nearest(options.name, caches)}")
    in_use = disk.remove(options.name)
    if in_use:
        raise PersistenceError(f"{options.name}: fits use the rows of ranks {in_use}. Try again when they have ended")
    return 0
