"""Files of Python workers, through their executors and Hadoop."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkdl_comm.errors import BridgeError, PersistenceError
from sparkdl_comm.jvm.bridge import PROTOCOL, Bridge
from sparkdl_comm.storage.files import ExecutorStorage

TIMEOUT = 30.0


def on_an_executor(spark: SparkSession, body: Callable[[], object]) -> str:
    """What `body` returns on some executor, as text."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"answer": [str(body())]})

    rows = spark.range(1).repartition(1).mapInArrow(task, "answer string").collect()
    return str(rows[0]["answer"])


def test_a_checkpoint_goes_out_and_comes_back(spark: SparkSession, hadoop_path: tuple[str, Path]) -> None:
    remote, there = hadoop_path
    contents = bytes(range(256)) * 20000  # several buffers of a copy

    def copy(path: Path) -> None:
        path.write_bytes(contents)

    def copy_of_directory(path: Path) -> None:
        (path / "deep").mkdir(parents=True)
        copy(path / "weights")
        (path / "deep/empty").touch()

    def body() -> object:
        with ExecutorStorage(TIMEOUT) as storage:
            before = storage.exists(remote), storage.names(remote), storage.local(f"{remote}/step-1/weights")
            storage.create(f"{remote}/step-1.new/weights", copy)
            storage.rename(f"{remote}/step-1.new", f"{remote}/step-1")
            storage.create(f"{remote}/note", copy)
            storage.replace(f"{remote}/model", copy_of_directory, overwrite=False)
            storage.replace(f"{remote}/model", copy_of_directory, overwrite=True)
            found = storage.names(remote)
            storage.delete(f"{remote}/note")
            weights, model = storage.local(f"{remote}/step-1/weights"), storage.local(f"{remote}/model/")
            assert weights is not None
            assert model is not None
            assert weights == storage.local(f"{remote}/step-1/weights")
            assert weights.read_bytes() == (model / "weights").read_bytes() == contents
            assert (model / "deep/empty").is_file()
        return before, found, weights.exists(), model.exists()

    assert on_an_executor(spark, body) == str(((False, [], None), ["model", "note", "step-1"], False, False))
    assert sorted(path.name for path in there.iterdir() if not path.name.startswith(".")) == ["model", "step-1"]
    assert not [path for path in there.iterdir() if path.name.endswith((".new", ".old"))]
    assert (there / "step-1/weights").read_bytes() == contents


def test_failures_are_persistence_errors_with_the_path(spark: SparkSession, hadoop_path: tuple[str, Path]) -> None:
    remote, there = hadoop_path
    (there / "full").mkdir(parents=True)
    (there / "full/one").touch()

    def body() -> object:
        refused = []
        with ExecutorStorage(TIMEOUT) as storage:
            for attempt in (
                lambda: storage.names(f"{remote}/full/one"),
                lambda: storage.create(f"{remote}/x", lambda path: path.rename("/does/not/exist")),
                lambda: storage.rename(f"{remote}/nowhere", f"{remote}/x"),
                lambda: storage.exists("viewfs://unmounted/x"),
            ):
                try:
                    attempt()
                except PersistenceError as error:
                    refused.append(error.message)
        return "\n".join(refused)

    messages = on_an_executor(spark, body).split("\n")
    expected = (f"{remote}/full/one", f"{remote}/x", f"{remote}/nowhere", "viewfs://unmounted/x")
    assert len(messages) == len(expected)
    for message, path in zip(messages, expected, strict=True):
        assert path in message


def test_files_need_no_rank_and_do_not_disturb_one(spark: SparkSession, hadoop_path: tuple[str, Path]) -> None:
    remote, _ = hadoop_path

    def body() -> object:
        rank = Bridge.connect(TIMEOUT)
        try:
            rank.request("hello", protocol=PROTOCOL, job=1 << 61, rank=0)
            with ExecutorStorage(TIMEOUT) as storage:
                storage.exists(remote)
            # the refusal of a session that has joined; without one it would be "hello has to come first"
            with pytest.raises(BridgeError, match="no segment is attached"):
                rank.request("pull", version=0, batch=0)
            rank.request("close")
        finally:
            rank.close()
        return "both"

    assert on_an_executor(spark, body) == "both"
