"""Storage: interface for files and directories by path, on a local disk and in Hadoop's file systems (``hdfs:``,
``s3a:``, ``viewfs:``, ``file:``).

A Python worker reaches Hadoop through the plugin in its executor. The plugin uses the executor's Hadoop settings: the
cluster's configuration files, and ``spark.hadoop.*`` of the application.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from sparkdl_comm.errors import PersistenceError
from sparkdl_comm.jvm.bridge import Bridge

S = TypeVar("S", bound="Storage")


class Storage(ABC):
    """Access to files and directories by path. Close it to delete its temporary files.

    All methods raise PersistenceError, with the path, if the file system refuses the operation.
    """

    def __init__(self, scratch: str | None = None) -> None:
        """:param scratch: local directory for temporary files. None: the system's."""
        self._scratch = scratch
        self._at_close = contextlib.ExitStack()
        self._copies: dict[str, Path] = {}

    def qualify(self, path: str) -> str:
        """Return the path with its scheme and absolute, as far as this process can know."""
        return path

    @abstractmethod
    def exists(self, path: str) -> bool: ...

    @abstractmethod
    def replace(self, path: str, write: Callable[[Path], object], overwrite: bool) -> None:
        """Write a file or directory completely or not at all. ``path`` must not exist, except with ``overwrite``.

        :param write: gets a local path, and writes the file or directory there.
        """

    def local(self, path: str) -> Path | None:
        """Return the local path, or that of a copy that exists until :meth:`close`. None: ``path`` does not exist.

        :param path: a file; or a directory, if it ends with ``/``.
        """
        if path not in self._copies:
            if not self.exists(path):
                return None
            copy = self._temporary(self._at_close, path)
            self._get(path, copy)
            self._copies[path] = copy
        return self._copies[path]

    def close(self) -> None:
        self._at_close.close()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _get(self, path: str, local: Path) -> None:
        """Copy what is at ``path`` to a local path, for :meth:`local`."""
        raise NotImplementedError

    def _temporary(self, stack: contextlib.ExitStack, path: str) -> Path:
        """Return a local path with the name of ``path``, in a directory that exists until ``stack`` closes."""
        folder = tempfile.TemporaryDirectory(prefix="sparkdl-", dir=self._scratch, ignore_cleanup_errors=True)
        return Path(stack.enter_context(folder), PurePosixPath(path).name)


class FileStorage(Storage):
    """Storage that also has the single operations on files.

    :meth:`replace` writes next to the path and then renames. On object stores, where renaming is copying, an
    interrupted rename can leave a partial directory.
    """

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; an empty list if it does not exist."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory within its file system. ``target`` must not exist, but its parent must.

        The operation is atomic if the file system's rename is.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its contents. A missing path is no error."""

    def create(self, path: str, write: Callable[[Path], object]) -> None:
        """Write a file or directory, and its parents. Return when it is on disk. A failure can leave a part of it.

        :param write: gets a local path, and writes the file or directory there.
        """
        with contextlib.ExitStack() as stack:
            local = self._temporary(stack, path)
            try:
                write(local)
                self._put(local, path)
            except PersistenceError:
                raise
            except OSError as error:
                raise PersistenceError(f"cannot write {local}, the local copy of {path}: {error}") from error

    def replace(self, path: str, write: Callable[[Path], object], overwrite: bool) -> None:
        path = path.rstrip("/")
        name, token = path.rpartition("/")[2], uuid.uuid4().hex[:12]
        new, old = (f"{path.removesuffix(name)}.{name}.{token}.{kind}" for kind in ("new", "old"))
        try:
            self.create(new, write)
            if overwrite and self.exists(path):
                self.rename(path, old)
            try:
                self.rename(new, path)
            except BaseException:
                if self.exists(old):
                    self.rename(old, path)
                raise
            self.delete(old)
        except PersistenceError as error:
            raise PersistenceError(f"cannot write {path}: {error.message}") from error
        finally:
            self.delete(new)

    def abort(self) -> None:
        """End an operation that waits for another process with an error. May be called from any thread."""
        return  # most have no such operation

    def _put(self, local: Path, path: str) -> None:
        """Copy a local file or directory to ``path``, for :meth:`create`. Create parent directories."""
        raise NotImplementedError


class LocalStorage(FileStorage):
    """Storage in the local file system or on a shared mount.

    :param setting: name of the setting that gives the paths, for messages.
    """

    def __init__(self, setting: str) -> None:
        super().__init__()
        self._setting = setting

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def names(self, directory: str) -> list[str]:
        with self._typed_errors("list", directory):
            return sorted(os.listdir(directory)) if os.path.isdir(directory) else []

    def create(self, path: str, write: Callable[[Path], object]) -> None:
        local = Path(path)
        with self._typed_errors("write", path):
            local.parent.mkdir(parents=True, exist_ok=True)
            write(local)
            for written in (local, *local.rglob("*"), local.parent):
                _sync(written)

    def rename(self, source: str, target: str) -> None:
        with self._typed_errors("rename", source):
            # rename(2) would silently replace an empty directory.
            if os.path.exists(target):
                raise FileExistsError(f"{target} already exists")
            os.rename(source, target)
            _sync(Path(target).parent)

    def delete(self, path: str) -> None:
        with self._typed_errors("delete", path):
            shutil.rmtree(path) if os.path.isdir(path) else Path(path).unlink(missing_ok=True)

    def local(self, path: str) -> Path | None:
        return Path(path) if os.path.exists(path) else None

    @contextlib.contextmanager
    def _typed_errors(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except PersistenceError:
            raise
        except OSError as error:
            raise PersistenceError(f"cannot {action} {path} ({self._setting}): {error}") from error


class ExecutorStorage(FileStorage):
    """Storage in Hadoop's file systems, through the executor that runs this Python worker.

    It has its own connection, so a long copy does not delay this rank's other requests. Not thread-safe, except
    :meth:`abort`. A path without a scheme is in ``spark.hadoop.fs.defaultFS``.

    All methods also raise DeadlineError if the executor does not answer within ``timeout`` seconds and a grace period, and
    BridgeError if it goes away. After these two errors the object is unusable.
    """

    def __init__(self, timeout: float) -> None:
        """Connect to the executor.

        :param timeout: seconds that one operation may take, including the copy of a file (``CommConf.timeout``).
        :raises PluginError: the plugin is not loaded in this executor.
        """
        super().__init__(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None)
        self._bridge = Bridge.connect(timeout)
        self._at_close.callback(self._bridge.close)

    def exists(self, path: str) -> bool:
        return bool(self._bridge.request("fs.exists", remote=path)["exists"])

    def names(self, directory: str) -> list[str]:
        return [entry["name"] for entry in self._entries(directory)] if self.exists(directory) else []

    def rename(self, source: str, target: str) -> None:
        self._bridge.request("fs.rename", **{"from": source, "to": target})

    def delete(self, path: str) -> None:
        self._bridge.request("fs.delete", remote=path, recursive=True)

    def abort(self) -> None:
        """End a waiting operation with BridgeError. The executor stops a running copy."""
        self._bridge.abort()

    def _put(self, local: Path, path: str) -> None:
        if local.is_dir():
            for entry in local.iterdir():
                self._put(entry, f"{path}/{entry.name}")
        else:
            self._bridge.request("fs.put", local=str(local), remote=path)

    def _get(self, path: str, local: Path) -> None:
        if not path.endswith("/"):
            self._bridge.request("fs.get", remote=path, local=str(local))
            return
        local.mkdir()
        for entry in self._entries(path):
            self._get(path + entry["name"] + "/" * entry["is_directory"], local / entry["name"])

    def _entries(self, directory: str) -> list[dict[str, Any]]:
        """Return ``name``, ``is_directory`` and ``length`` (bytes) of a directory's entries, sorted by name."""
        entries: list[dict[str, Any]] = self._bridge.request("fs.list", remote=directory)["entries"]
        return entries


def open_storage(path: str, timeout: float, setting: str) -> FileStorage:
    """Return the storage for a path, as a Python worker of an executor reaches it.

    :param path: an absolute local path; or a Hadoop URI, which needs the plugin in the executor.
    :param timeout: seconds that one remote operation may take.
    :param setting: name of the setting that gives the path, for messages.
    """
    return LocalStorage(setting) if path.startswith("/") else ExecutorStorage(timeout)


def _sync(path: Path) -> None:
    """Flush a file's content, or a directory's entries, to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
