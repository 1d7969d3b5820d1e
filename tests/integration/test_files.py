"""Files of Python workers, through their executors and Hadoop."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkdl_comm.errors import BridgeError, PersistenceError
from sparkdl_comm.jvm.bridge import PROTOCOL, Bridge
from sparkdl_comm.jvm.files import ExecutorFiles, FileEntry

TIMEOUT = 30.0


def on_an_executor(spark: SparkSession, body: Callable[[], object]) -> str:
    """What `body` returns on some executor, as text."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"answer": [str(body())]})

    rows = spark.range(1).repartition(1).mapInArrow(task, "answer string").collect()
    return str(rows[0]["answer"])


def test_a_checkpoint_goes_out_and_comes_back(
    spark: SparkSession, hadoop_path: tuple[str, Path], tmp_path: Path
) -> None:
    remote, there = hadoop_path
    contents = bytes(range(256)) * 20000  # several buffers of a copy
    (tmp_path / "weights").write_bytes(contents)
    back = tmp_path / "back"

    def body() -> object:
        with ExecutorFiles(TIMEOUT) as files:
            before = files.exists(remote)
            files.put(tmp_path / "weights", f"{remote}/step-1.new/weights")
            files.rename(f"{remote}/step-1.new", f"{remote}/step-1")
            files.put(tmp_path / "weights", f"{remote}/note")
            files.get(f"{remote}/step-1/weights", back)
            found = files.list(remote)
            files.delete(f"{remote}/note")
            return (
                before,
                [(entry.name, entry.is_directory) for entry in found],
                found[0],
                files.exists(f"{remote}/note"),
            )

    note = FileEntry("note", is_directory=False, length=len(contents))
    assert on_an_executor(spark, body) == str((False, [("note", False), ("step-1", True)], note, False))
    assert back.read_bytes() == contents
    assert [path.name for path in there.iterdir() if not path.name.startswith(".")] == ["step-1"]
    assert (there / "step-1/weights").read_bytes() == contents


def test_failures_are_persistence_errors_with_the_path(spark: SparkSession, hadoop_path: tuple[str, Path]) -> None:
    remote, there = hadoop_path
    (there / "full").mkdir(parents=True)
    (there / "full/one").touch()

    def body() -> object:
        refused = []
        with ExecutorFiles(TIMEOUT) as files:
            for attempt in (
                lambda: files.list(f"{remote}/nowhere"),
                lambda: files.put("/does/not/exist", f"{remote}/x"),
                lambda: files.delete(f"{remote}/full"),
                lambda: files.exists("viewfs://unmounted/x"),
            ):
                try:
                    attempt()
                except PersistenceError as error:
                    refused.append(error.message)
        return "\n".join(refused)

    messages = on_an_executor(spark, body).split("\n")
    expected = (f"{remote}/nowhere", "/does/not/exist", f"{remote}/full", "viewfs://unmounted/x")
    assert len(messages) == len(expected)
    for message, path in zip(messages, expected, strict=True):
        assert path in message
    assert (there / "full/one").exists()


def test_files_need_no_rank_and_do_not_disturb_one(spark: SparkSession, hadoop_path: tuple[str, Path]) -> None:
    remote, _ = hadoop_path

    def body() -> object:
        rank = Bridge.connect(TIMEOUT)
        try:
            rank.request("hello", protocol=PROTOCOL, job=1 << 61, rank=0)
            with ExecutorFiles(TIMEOUT) as files:
                files.exists(remote)
            # the refusal of a session that has joined; without one it would be "hello has to come first"
            with pytest.raises(BridgeError, match="no segment is attached"):
                rank.request("pull", version=0, batch=0)
            rank.request("close")
        finally:
            rank.close()
        return "both"

    assert on_an_executor(spark, body) == "both"
