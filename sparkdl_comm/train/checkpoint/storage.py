"""Checkpoint storage: files in a directory that all ranks share, on one host, on a shared mount, or on a Hadoop
filesystem.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparkdl_comm.errors import PersistenceError
from sparkdl_comm.jvm.files import ExecutorFiles

_CHUNK = 1 << 20


class CheckpointStorage(ABC):
    """Backend for checkpoint files. Names are relative to the directory, with ``/`` between their parts.

    All methods raise PersistenceError, with the path.
    """

    @classmethod
    def at(cls, directory: str, timeout: float) -> CheckpointStorage:
        """Return the storage for ``directory``.

        :param directory: an absolute local path, or a Hadoop URI. A URI goes through this worker's executor, which
            needs the plugin.
        :param timeout: seconds that one remote operation may take.
        """
        return LocalStorage(Path(directory)) if directory.startswith("/") else HadoopStorage(directory, timeout)

    @abstractmethod
    def names(self, directory: str = "") -> list[str]:
        """Return the names in a directory; an empty list if it does not exist."""

    @abstractmethod
    def create(self, name: str, write: Callable[[Path], object]) -> dict[str, Any]:
        """Create a file: ``write`` gets a local path to write to. Return its :func:`checksums` when it is on disk."""

    @abstractmethod
    def local(self, name: str) -> Path | None:
        """Return the local path of the file, or of a copy that exists until :meth:`close`. None: there is no such file."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory. ``target`` must not exist."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file, or a directory with its contents."""

    @abstractmethod
    def abort(self) -> None:
        """End an operation that waits for another process with an error. May be called from any thread."""

    @abstractmethod
    def close(self) -> None:
        """Delete temporary files of this process."""

    def __enter__(self) -> CheckpointStorage:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LocalStorage(CheckpointStorage):
    """Directory in the local file system or on a shared mount."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, directory: str = "") -> list[str]:
        with self._typed_errors("list", directory):
            path = self._root / directory
            return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []

    def create(self, name: str, write: Callable[[Path], object]) -> dict[str, Any]:
        path = self._root / name
        with self._typed_errors("write", name):
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
            _sync(path)
            _sync(path.parent)
            return checksums(path)

    def local(self, name: str) -> Path | None:
        with self._typed_errors("read", name):
            return self._root / name if (self._root / name).is_file() else None

    def rename(self, source: str, target: str) -> None:
        with self._typed_errors("rename", source):
            # rename(2) would silently replace an empty directory.
            if (self._root / target).exists():
                raise FileExistsError(f"{self._root / target} already exists")
            os.rename(self._root / source, self._root / target)
            _sync(self._root)

    def delete(self, name: str) -> None:
        path = self._root / name
        with self._typed_errors("delete", name):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def abort(self) -> None:
        """Do nothing: no operation waits for another process."""

    def close(self) -> None:
        """Do nothing: there are no temporary files."""

    @contextmanager
    def _typed_errors(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except PersistenceError:
            raise
        except OSError as error:
            raise PersistenceError(f"cannot {action} {self._root / name} (checkpointDir): {error}") from error


class HadoopStorage(CheckpointStorage):
    """Directory on a Hadoop filesystem. Files are written to the local disk first, and the executor copies them."""

    def __init__(self, root: str, timeout: float) -> None:
        self._root = root.rstrip("/")
        self._files = ExecutorFiles(timeout)
        local_dir = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        self._scratch = Path(tempfile.mkdtemp(prefix="sparkdl-checkpoint-", dir=local_dir or None))

    def names(self, directory: str = "") -> list[str]:
        path = self._uri(directory)
        return [entry.name for entry in self._files.list(path)] if self._files.exists(path) else []

    def create(self, name: str, write: Callable[[Path], object]) -> dict[str, Any]:
        path = self._scratch / "new"
        try:
            write(path)
            result = checksums(path)
            self._files.put(path, self._uri(name))
        except PersistenceError:
            raise
        except OSError as error:
            raise PersistenceError(f"cannot write {path}, the local copy of {self._uri(name)}: {error}") from error
        finally:
            path.unlink(missing_ok=True)
        return result

    def local(self, name: str) -> Path | None:
        path = self._scratch / "read" / name
        if not path.exists():
            if not self._files.exists(self._uri(name)):
                return None
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files.get(self._uri(name), path)
        return path

    def rename(self, source: str, target: str) -> None:
        self._files.rename(self._uri(source), self._uri(target))

    def delete(self, name: str) -> None:
        self._files.delete(self._uri(name), recursive=True)

    def abort(self) -> None:
        self._files.abort()

    def close(self) -> None:
        self._files.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _uri(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def checksums(path: Path) -> dict[str, Any]:
    """Return ``bytes`` and ``sha256`` of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _sync(path: Path) -> None:
    """Flush a file's content, or a directory's entries, to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
