"""Storage of a Spark session: any path that Hadoop reaches with the session's settings."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from sparkdl_comm.errors import ERRORS_BY_NAME, PersistenceError, SparkdlCommError
from sparkdl_comm.storage.files import ExecutorStorage, FileStorage, Storage

#: Bytes of a file per row sent to the client.
_CHUNK = 1 << 20
_SCHEMA = "error string, name string, data binary"


class DriverStorage(FileStorage):
    """Storage in Hadoop's file systems, through the driver's JVM."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__()
        self._jvm: Any = spark.sparkContext._jvm
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()

    def qualify(self, path: str) -> str:
        return str(self._open(path)[1].toString())

    def exists(self, path: str) -> bool:
        fs, target = self._open(path)
        with _typed_errors("look at", path):
            return bool(fs.exists(target))

    def names(self, directory: str) -> list[str]:
        fs, target = self._open(directory)
        with _typed_errors("list", directory):
            statuses = fs.listStatus(target) if fs.exists(target) else []
            return sorted(status.getPath().getName() for status in statuses)

    def rename(self, source: str, target: str) -> None:
        if self.exists(target):  # Hadoop would move a directory into it
            raise PersistenceError(f"cannot rename {source} to {target}, which already exists")
        fs, path = self._open(source)
        with _typed_errors("rename", source):
            if not fs.rename(path, self._hadoop_path(target)):
                raise PersistenceError(f"cannot rename {source} to {target}")

    def delete(self, path: str) -> None:
        fs, target = self._open(path)
        with _typed_errors("delete", path):
            fs.delete(target, True)

    def local(self, path: str) -> Path | None:
        fs, target = self._open(path)
        if fs.getUri().getScheme() != "file":
            return super().local(path)
        return Path(target.toUri().getPath()) if self.exists(path) else None

    def _put(self, local: Path, path: str) -> None:
        fs, target = self._open(path)
        with _typed_errors("write", path):
            fs.copyFromLocalFile(False, True, self._hadoop_path(local.as_uri()), target)

    def _get(self, path: str, local: Path) -> None:
        fs, source = self._open(path)
        with _typed_errors("read", path):
            fs.copyToLocalFile(False, source, self._hadoop_path(local.as_uri()), True)

    def _open(self, path: str) -> tuple[Any, Any]:
        """Return the path's file system, and the qualified path as Hadoop's class."""
        with _typed_errors("open", path):
            target = self._hadoop_path(path)
            fs = target.getFileSystem(self._conf)
            return fs, fs.makeQualified(target)

    def _hadoop_path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)


class ConnectStorage(Storage):
    """Storage through an executor and the plugin, for a client of Spark Connect, which has no JVM.

    :param timeout: seconds that one operation of the executor may take.
    """

    def __init__(self, spark: SparkSession, timeout: float) -> None:
        super().__init__()
        self._spark, self._timeout = spark, timeout

    def exists(self, path: str) -> bool:
        return bool(list(self._run(path, lambda storage: [(path, b"")] if storage.exists(path) else [])))

    def replace(self, path: str, write: Callable[[Path], object], overwrite: bool) -> None:
        with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
            root = Path(folder, "new")
            write(root)
            names = {
                file.relative_to(root).as_posix(): add_file(self._spark, file)
                for file in (root, *root.rglob("*"))
                if file.is_file()
            }

        def link(local: Path) -> None:
            for name, session_file in names.items():
                (local / name).parent.mkdir(parents=True, exist_ok=True)
                (local / name).symlink_to(SparkFiles.get(session_file))

        def work(storage: ExecutorStorage) -> Iterable[tuple[str, bytes]]:
            storage.replace(path, link, overwrite)
            return []

        list(self._run(path, work))

    def _get(self, path: str, local: Path) -> None:
        for name, data in self._run(path, lambda storage: _read(storage, path)):
            if ".." in Path(name).parts:
                raise PersistenceError(f"{path}: has a file {name!r}, whose path leads out of the directory")
            (local / name).parent.mkdir(parents=True, exist_ok=True)
            with (local / name).open("ab") as end:
                end.write(data)

    def _run(
        self, path: str, work: Callable[[ExecutorStorage], Iterable[tuple[str, bytes]]]
    ) -> Iterator[tuple[str, bytes]]:
        timeout = self._timeout

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                pass
            try:
                with ExecutorStorage(timeout) as storage:
                    for name, data in work(storage):
                        yield _row(None, name, data)
            except SparkdlCommError as error:  # sent as a row, because Spark Connect truncates exceptions
                yield _row(type(error).__name__, error.message, b"")

        rows = self._spark.range(0, 1, 1, 1).mapInArrow(task, _SCHEMA)  # type: ignore[arg-type]
        for row in rows.toLocalIterator():
            if row["error"] is not None:
                raise ERRORS_BY_NAME[row["error"]](f"{path}: {row['name']}")
            yield row["name"], bytes(row["data"])


def add_file(spark: SparkSession, path: Path) -> str:
    """Add a file to a Spark Connect session. The server keeps it until the session ends.

    :return: the name to pass to ``SparkFiles.get`` in tasks.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".sparkdl-") as folder:
        unique = Path(folder, f"sparkdl-{uuid.uuid4().hex}")
        unique.hardlink_to(path)
        spark.addArtifacts(str(unique), file=True)
    return unique.name


@contextmanager
def _typed_errors(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise PersistenceError(f"cannot {action} {path}: {error.java_exception.toString()}") from error
    except Py4JError as error:
        raise PersistenceError(f"cannot {action} {path}: {error}") from error


def _row(error: str | None, name: str, data: bytes) -> pa.RecordBatch:
    columns = [pa.array([error], pa.string()), pa.array([name]), pa.array([data], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["error", "name", "data"])


def _read(storage: ExecutorStorage, path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files below ``path`` in order, as pieces with the file's name."""
    root = storage.local(path)
    if root is None:
        raise PersistenceError("it was deleted while it was read")
    for file in sorted((root, *root.rglob("*"))):
        if file.is_file():
            name = file.relative_to(root).as_posix()
            yield name, b""  # for empty files
            with file.open("rb") as content:
                while piece := content.read(_CHUNK):
                    yield name, piece
