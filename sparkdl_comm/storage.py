"""Where models are kept: a directory at any path that Hadoop can reach, there completely or not at all.

A save writes to a directory next to its path and renames that (on object stores, where renaming is copying, an interrupted
rename can leave a part). A client of Spark Connect has no JVM of its own; one of the executors does it for it.
"""

from __future__ import annotations

import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from .conf import CommConf
from .errors import BY_NAME, PersistenceError, SparkdlCommError
from .ps.files import ExecutorFiles
from .session import is_classic, session_conf
from .shipping import add_file

#: Bytes of a file per row on the way to the client.
_CHUNK = 1 << 20
_SCHEMA = "error string, name string, data binary"


class Store(ABC):
    """A directory at any path that Hadoop can reach with the session's settings. Raises PersistenceError."""

    @abstractmethod
    def exists(self) -> bool: ...

    @abstractmethod
    def put(self, folder: Path, replace: bool) -> None:
        """Copy a local directory, or file, here, all or nothing; ``replace``: instead of what is here now."""

    @abstractmethod
    def local(self) -> AbstractContextManager[Path]:
        """The directory on a local disk."""


def open_store(spark: SparkSession, path: str) -> Store:
    return DriverStore(spark, path) if is_classic(spark) else ExecutorStore(spark, path)


class DriverStore(Store):
    """The driver's JVM does the work."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._path = path
        self._jvm: Any = spark.sparkContext._jvm
        with self._named("open"):
            self._target = self._at(path)
            hadoop = spark.sparkContext._jsc.hadoopConfiguration()
            self._fs = self._target.getFileSystem(hadoop)
            self._target = self._fs.makeQualified(self._target)

    def exists(self) -> bool:
        with self._named("look at"):
            return bool(self._fs.exists(self._target))

    def put(self, folder: Path, replace: bool) -> None:
        parent, name = self._target.getParent(), self._target.getName()
        new, old = (self._at(f"{parent}/.{name}.{uuid.uuid4().hex[:12]}.{kind}") for kind in ("new", "old"))
        with self._named("write"):
            try:
                self._fs.mkdirs(parent)
                self._fs.copyFromLocalFile(False, True, self._at(folder.as_uri()), new)
                if replace and self._fs.exists(self._target):
                    self._rename(self._target, old)
                try:
                    self._rename(new, self._target)
                except BaseException:
                    if self._fs.exists(old):
                        self._fs.rename(old, self._target)
                    raise
                self._fs.delete(old, True)
            finally:
                self._fs.delete(new, True)

    @contextmanager
    def local(self) -> Iterator[Path]:
        """Itself if it is on a local disk already, else a temporary copy."""
        if not self.exists():
            raise PersistenceError(f"{self._path}: there is nothing at {self._target.toString()}")
        if self._fs.getUri().getScheme() == "file":
            yield Path(self._target.toUri().getPath())
            return
        with tempfile.TemporaryDirectory(prefix="sparkdl-load-") as folder:
            copied = Path(folder) / "model"
            with self._named("read"):
                self._fs.copyToLocalFile(False, self._target, self._at(copied.as_uri()), True)
            yield copied

    def _at(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _rename(self, source: Any, target: Any) -> None:
        if not self._fs.rename(source, target):
            raise PersistenceError(f"{self._path}: cannot rename {source.toString()} to {target.toString()}")

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            raise PersistenceError(f"cannot {what} {self._path}: {error.java_exception.toString()}") from error
        except Py4JError as error:
            raise PersistenceError(f"cannot {what} {self._path}: {error}") from error


class ExecutorStore(Store):
    """An executor does the work, through the plugin: for Spark Connect."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark, self._path = spark, path
        self._timeout = CommConf.from_mapping(session_conf(spark)).timeout

    def exists(self) -> bool:
        path = self._path
        return bool(list(self._run(lambda files: [(path, b"")] if files.exists(path) else [])))

    def put(self, folder: Path, replace: bool) -> None:
        if folder.is_file():
            sent = {"": add_file(self._spark, folder)}
        else:
            files = [file for file in folder.rglob("*") if file.is_file()]
            sent = {"/" + file.relative_to(folder).as_posix(): add_file(self._spark, file) for file in files}
        path, token = self._path.rstrip("/"), uuid.uuid4().hex[:12]
        list(self._run(lambda files: _put(files, sent, path, token, replace)))

    @contextmanager
    def local(self) -> Iterator[Path]:
        if not self.exists():
            raise PersistenceError(f"{self._path}: there is nothing at {self._path}")
        path = self._path.rstrip("/")
        with tempfile.TemporaryDirectory(prefix="sparkdl-load-") as folder:
            for name, data in self._run(lambda files: _read(files, path, "")):
                if ".." in PurePosixPath(name).parts:
                    raise PersistenceError(f"{self._path}: has a file {name!r}, which would lie elsewhere")
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
            except SparkdlCommError as error:  # as a row: Spark Connect cuts messages of exceptions off
                yield _row(type(error).__name__, error.message, b"")

        rows = self._spark.range(0, 1, 1, 1).mapInArrow(task, _SCHEMA)  # type: ignore[arg-type]
        for row in rows.toLocalIterator():
            if row["error"] is not None:
                raise BY_NAME[row["error"]](f"{self._path}: {row['name']}")
            yield row["name"], bytes(row["data"])


def _row(error: str | None, name: str, data: bytes) -> pa.RecordBatch:
    columns = [pa.array([error], pa.string()), pa.array([name]), pa.array([data], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["error", "name", "data"])


def _put(files: ExecutorFiles, sent: dict[str, str], path: str, token: str, replace: bool) -> list[tuple[str, bytes]]:
    name = path.rpartition("/")[2]
    new, old = (f"{path.removesuffix(name)}.{name}.{token}.{kind}" for kind in ("new", "old"))
    try:
        for relative, file in sent.items():
            files.put(SparkFiles.get(file), new + relative)
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
    return []


def _read(files: ExecutorFiles, path: str, folder: str) -> Iterator[tuple[str, bytes]]:
    """The files below ``path``: the pieces of each with its name, in order."""
    for entry in files.list(f"{path}/{folder}"):
        name = folder + entry.name
        if entry.is_directory:
            yield from _read(files, path, name + "/")
            continue
        with tempfile.TemporaryDirectory() as place:
            local = Path(place, "file")
            files.get(f"{path}/{name}", local)
            with local.open("rb") as content:
                yield name, b""  # also of an empty file
                while piece := content.read(_CHUNK):
                    yield name, piece
