"""Storage of saved models: a directory at any path that Hadoop can reach, written completely or not at all.

A save writes to a directory next to its path and then renames it. On object stores, where renaming is copying, an
interrupted rename can leave a partial directory. A Spark Connect client has no JVM, so an executor does the work for
it.
"""

from __future__ import annotations

import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ERRORS_BY_NAME, ConfError, PersistenceError, SparkdlCommError
from sparkdl_comm.job.module_broadcast import add_file
from sparkdl_comm.job.session import is_classic, session_conf
from sparkdl_comm.jvm.files import ExecutorFiles
from sparkdl_comm.train.checkpoint.checkpoint_directory import check_unused, complete_steps

#: Bytes of a file per row sent to the client.
_CHUNK = 1 << 20
_SCHEMA = "error string, name string, data binary"


class Files(Protocol):
    """File operations of both :class:`~sparkdl_comm.jvm.files.ExecutorFiles` and the driver's JVM."""

    def exists(self, remote: str) -> bool: ...

    def put(self, local: str, remote: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def delete(self, remote: str, recursive: bool = False) -> None: ...


class Storage(ABC):
    """Directory at any path that Hadoop can reach with the session's settings.

    :raises PersistenceError: by all methods, if something cannot be read or written.
    """

    @abstractmethod
    def exists(self) -> bool: ...

    @abstractmethod
    def put(self, folder: Path, replace: bool) -> None:
        """Copy a local directory or file to this path, all or nothing. ``replace``: overwrite what exists."""

    @abstractmethod
    def local(self) -> AbstractContextManager[Path]:
        """Return a context manager that gives the directory on a local disk."""


def open_storage(spark: SparkSession, path: str) -> Storage:
    return DriverStorage(spark, path) if is_classic(spark) else ExecutorStorage(spark, path)


def check_checkpoint_directory(spark: SparkSession, directory: str, resume: bool) -> None:
    """Check a directory for checkpoints as far as the driver can, before executors are used. Rank 0 checks it again.

    :param directory: a local path, or a URI for Hadoop.
    :raises ConfError: it cannot be written, or it has checkpoints and ``resume`` is not set.
    """
    local = directory.startswith("/")
    # The driver of a cluster may not share a mount with its executors.
    if not is_classic(spark) or (local and not (spark.sparkContext.master or "").startswith("local")):
        return
    try:
        storage = DriverStorage(spark, f"file://{directory}" if local else directory)
        steps = complete_steps(storage.names())
        storage.try_writing()
    except PersistenceError as error:
        raise ConfError(f"checkpointDir={directory}: {error.message}") from error
    check_unused(directory, steps, resume)


class DriverStorage(Storage):
    """Storage through the driver's JVM."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._path = path
        self._jvm: Any = spark.sparkContext._jvm
        with self._translate_errors("open"):
            target = self._hadoop_path(path)
            self._fs = target.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
            self._target = self._fs.makeQualified(target)

    def exists(self) -> bool:
        with self._translate_errors("look at"):
            return bool(self._fs.exists(self._target))

    def put(self, folder: Path, replace: bool) -> None:
        files = {suffix: str(file) for suffix, file in _files(folder).items()}
        with self._translate_errors("write"):
            _put(_DriverFiles(self._fs, self._hadoop_path), files, self._target.toString(), replace)

    @contextmanager
    def local(self) -> Iterator[Path]:
        """Yield the directory itself if it is on a local disk, else a temporary copy."""
        if not self.exists():
            raise PersistenceError(f"{self._path}: there is nothing at {self._target.toString()}")
        if self._fs.getUri().getScheme() == "file":
            yield Path(self._target.toUri().getPath())
            return
        with tempfile.TemporaryDirectory(prefix="sparkdl-load-") as folder:
            copied = Path(folder) / "model"
            with self._translate_errors("read"):
                self._fs.copyToLocalFile(False, self._target, self._hadoop_path(copied.as_uri()), True)
            yield copied

    def names(self) -> list[str]:
        """Return the names of the files in the directory; an empty list if it does not exist."""
        with self._translate_errors("look at"):
            statuses = self._fs.listStatus(self._target) if self._fs.exists(self._target) else []
            return [status.getPath().getName() for status in statuses]

    def try_writing(self) -> None:
        """Create the directory and a file in it, and delete the file."""
        probe = f"{self._target.toString()}/.probe-{uuid.uuid4().hex[:12]}"
        with self._translate_errors("write"):
            self._fs.mkdirs(self._target)
            self._fs.create(self._hadoop_path(probe), False).close()
            self._fs.delete(self._hadoop_path(probe), False)

    def _hadoop_path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    @contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            raise PersistenceError(f"cannot {action} {self._path}: {error.java_exception.toString()}") from error
        except Py4JError as error:
            raise PersistenceError(f"cannot {action} {self._path}: {error}") from error


class _DriverFiles:
    """:class:`Files` for a Hadoop file system. ``at`` makes its paths."""

    def __init__(self, fs: Any, at: Callable[[str], Any]) -> None:
        self._fs, self._hadoop_path = fs, at

    def exists(self, remote: str) -> bool:
        return bool(self._fs.exists(self._hadoop_path(remote)))

    def put(self, local: str, remote: str) -> None:
        self._fs.copyFromLocalFile(False, True, self._hadoop_path(Path(local).as_uri()), self._hadoop_path(remote))

    def rename(self, source: str, target: str) -> None:
        if not self._fs.rename(self._hadoop_path(source), self._hadoop_path(target)):
            raise PersistenceError(f"cannot rename {source} to {target}")

    def delete(self, remote: str, recursive: bool = False) -> None:
        self._fs.delete(self._hadoop_path(remote), recursive)


class ExecutorStorage(Storage):
    """Storage through an executor and the plugin, for Spark Connect, whose clients have no JVM."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark, self._path = spark, path
        self._timeout = CommConf.from_mapping(session_conf(spark)).timeout

    def exists(self) -> bool:
        path = self._path
        return bool(list(self._run(lambda files: [(path, b"")] if files.exists(path) else [])))

    def put(self, folder: Path, replace: bool) -> None:
        local_paths = {suffix: add_file(self._spark, file) for suffix, file in _files(folder).items()}
        path = self._path.rstrip("/")

        def work(files: ExecutorFiles) -> Iterable[tuple[str, bytes]]:
            _put(files, {suffix: SparkFiles.get(name) for suffix, name in local_paths.items()}, path, replace)
            return []

        list(self._run(work))

    @contextmanager
    def local(self) -> Iterator[Path]:
        if not self.exists():
            raise PersistenceError(f"{self._path}: there is nothing at {self._path}")
        path = self._path.rstrip("/")
        with tempfile.TemporaryDirectory(prefix="sparkdl-load-") as folder:
            for name, data in self._run(lambda files: _read(files, path, "")):
                if ".." in PurePosixPath(name).parts:
                    raise PersistenceError(f"{self._path}: has a file {name!r}, whose path leads out of the directory")
                file = Path(folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("ab") as end:
                    end.write(data)
            yield Path(folder)

    def _run(self, work: Callable[[ExecutorFiles], Iterable[tuple[str, bytes]]]) -> Iterator[tuple[str, bytes]]:
        timeout = self._timeout

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                pass
            try:
                with ExecutorFiles(timeout) as files:
                    for name, data in work(files):
                        yield _row(None, name, data)
            except SparkdlCommError as error:  # sent as a row, because Spark Connect truncates exceptions
                yield _row(type(error).__name__, error.message, b"")

        rows = self._spark.range(0, 1, 1, 1).mapInArrow(task, _SCHEMA)  # type: ignore[arg-type]
        for row in rows.toLocalIterator():
            if row["error"] is not None:
                raise ERRORS_BY_NAME[row["error"]](f"{self._path}: {row['name']}")
            yield row["name"], bytes(row["data"])


def _row(error: str | None, name: str, data: bytes) -> pa.RecordBatch:
    columns = [pa.array([error], pa.string()), pa.array([name]), pa.array([data], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["error", "name", "data"])


def _files(folder: Path) -> dict[str, Path]:
    """Return the files in a directory by their suffix to its path. For a file, return the file itself."""
    if folder.is_file():
        return {"": folder}
    return {"/" + file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}


def _put(files: Files, local_paths: Mapping[str, str], path: str, replace: bool) -> None:
    """Copy local files to ``path``, all or nothing. ``local_paths``: local paths by their suffix to ``path``."""
    name, token = path.rpartition("/")[2], uuid.uuid4().hex[:12]
    new, old = (f"{path.removesuffix(name)}.{name}.{token}.{kind}" for kind in ("new", "old"))
    try:
        for suffix, file in local_paths.items():
            files.put(file, new + suffix)
        if replace and files.exists(path):
            files.rename(path, old)
        try:
            files.rename(new, path)
        except BaseException:
            if files.exists(old):
                files.rename(old, path)
            raise
        files.delete(old, recursive=True)
    finally:
        files.delete(new, recursive=True)


def _read(files: ExecutorFiles, path: str, folder: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files below ``path`` in order, as pieces with the file's name."""
    for entry in files.list(f"{path}/{folder}"):
        name = folder + entry.name
        if entry.is_directory:
            yield from _read(files, path, name + "/")
            continue
        with tempfile.TemporaryDirectory() as place:
            local = Path(place, "file")
            files.get(f"{path}/{name}", local)
            with local.open("rb") as content:
                yield name, b""  # for empty files
                while piece := content.read(_CHUNK):
                    yield name, piece
