"""A Spark application that is asked to fail: one JSON request a line on stdin, one answer a line on stdout.

A process of its own, because its executors are killed, and a process has one JVM. A request is a run, see
:meth:`tests.faults.application.Application.run`, or {"remains": slots}: what is left of the runs before.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import sparkdl_comm
from sparkdl_comm import TorchModel
from sparkdl_comm.ml.estimator import TorchEstimator
from tests.faults import processes
from tests.faults.fault import Fault
from tests.faults.injection import Factory, Sgd

#: Seconds that tasks, segments and processes may take to go after an error.
SETTLE_SECONDS = 20.0


def start(folder: Path, cluster: dict[str, str]) -> SparkSession:
    conf = {
        "spark.master": "local-cluster[3,1,1024]",
        "spark.app.name": "sparkdl_comm faults",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        # where the bridge has its socket
        "spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={folder / 'tmp'}",
        # a fault is to be seen, not to be got over
        **sparkdl_comm.spark_conf(progress=False, slot_timeout="60s", max_restarts=0),
        **cluster,
    }
    session = SparkSession.builder.config(map=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def rows(spark: SparkSession, ragged: bool = False) -> DataFrame:
    """96 rows of 64 features; every step has 12 of them, an epoch 8 steps. Partitions do not depend on how many executors
    have registered yet: another application has the same."""
    width = F.when(F.col("id") == 50, 63).otherwise(64) if ragged else F.lit(64)
    features = F.transform(F.sequence(F.lit(1), width), lambda k: F.sin(k * (F.col("id") + 1)).cast("float"))
    return spark.range(0, 96, 1, 4).select(features.alias("features"), (F.col("id") % 2).alias("label"))


def many_files(spark: SparkSession, folder: Path) -> DataFrame:
    """The same rows in 16 files: how Spark splits these depends on how many cores it has just then."""
    path = folder / "rows.parquet"
    if not path.exists():
        rows(spark).repartitionByRange(16, F.col("features")[0]).write.parquet(str(path))
    return spark.read.parquet(str(path))


def estimator(strategy: str, fault: Fault | None, **settings: Any) -> TorchEstimator:
    common = {"batchSize": 12, "maxIter": 2, "num_workers": 3}
    return TorchEstimator(
        model=Factory(fault), loss="CrossEntropyLoss", optimizer=Sgd, strategy=strategy, **{**common, **settings}
    )


def weights(model: TorchModel) -> str:
    """Digest of all its tensors."""
    digest = hashlib.sha256()
    for tensor in model.module.state_dict().values():
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def values(model: TorchModel) -> list[float]:
    """Of all its tensors, one after the other."""
    return [value for tensor in model.module.state_dict().values() for value in tensor.flatten().tolist()]


def running_tasks(spark: SparkSession) -> int:
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return sum(info.numRunningTasks() for info in infos)


def wait_until_quiet(spark: SparkSession, name: str) -> dict[str, Any]:
    """Seconds until no task runs, and until nothing is left behind; and what was left when time was over."""
    begin = time.monotonic()
    idle: float | None = None
    while True:
        now = time.monotonic() - begin
        if idle is None and running_tasks(spark) == 0:
            idle = now
        left = processes.leftovers(name, os.getpid())
        if (idle is not None and not left) or now > SETTLE_SECONDS:
            return {"idle_after": idle, "quiet_after": now if not left else None, "leftovers": left}
        time.sleep(0.1)


def describe(error: BaseException) -> dict[str, Any]:
    return {
        "error": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__],
        "module": type(error).__module__,
        "text": str(error),
        "message": getattr(error, "message", None),
        "rank": getattr(error, "rank", None),
        "step": getattr(error, "step", None),
        "phase": getattr(error, "phase", None),
        "remote_traceback": getattr(error, "remote_traceback", None),
        "user_error": getattr(error, "error", None),
        "user_message": getattr(error, "error_message", None),
        "cause": type(error.__cause__ or error.__context__).__name__,
        "cause_text": str(error.__cause__ or error.__context__)[:6000],
    }


def run(spark: SparkSession, folder: Path, name: str, request: dict[str, Any]) -> dict[str, Any]:
    fault = Fault(**request["fault"]) if request.get("fault") else None
    conf = request.get("conf") or {}
    answer: dict[str, Any] = {}
    before = {key: spark.conf.get(key, None) for key in conf}
    for key, value in conf.items():
        spark.conf.set(key, value)
    begin = time.monotonic()
    try:
        settings = request.get("settings") or {}
        frame = many_files(spark, folder) if request.get("files") else rows(spark, request.get("ragged", False))
        trainer = estimator(request["strategy"], fault, **settings)
        begin = time.monotonic()
        model = _interruptible(trainer.fit, frame)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is, the test looks at it
        answer["raised_at"] = time.monotonic()
        answer.update(describe(error))
    else:
        summary = {name: model.summary[name] for name in ("iterations", "resumed_at", "restarts")}
        finite = all(bool(tensor.isfinite().all()) for tensor in model.module.state_dict().values())
        updates = model.history[-1]["step"]
        answer.update(
            error=None, weights=weights(model), values=values(model), finite=finite, updates=updates, **summary
        )
    finally:
        for key, value in before.items():  # unset would forget what the application began with, too
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)
    answer["ended_at"] = time.monotonic()
    answer["seconds"] = answer["ended_at"] - begin
    if not request.get("settle", True):
        return answer
    answer.update(wait_until_quiet(spark, name))
    if fault is not None or request.get("ragged"):
        answer["again"] = again(spark, request["strategy"])
    return answer


def _interruptible(call: Any, *arguments: Any) -> Any:
    """SIGINT reaches the fit, as the Spark session handles it, and nothing else of this program."""
    signal.signal(signal.SIGINT, _on_interrupt)
    try:
        return call(*arguments)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


_on_interrupt: Any = signal.default_int_handler


def again(spark: SparkSession, strategy: str) -> dict[str, Any]:
    """A run without a fault, on the same application; `fit` waits until there are executors for it."""
    begin = time.monotonic()
    try:
        model = estimator(strategy, None).fit(rows(spark))
    except Exception:  # noqa: BLE001
        return {"error": traceback.format_exc(), "seconds": time.monotonic() - begin}
    return {"error": None, "seconds": time.monotonic() - begin, "iterations": model.summary["iterations"]}


def remains(spark: SparkSession, slots: int) -> dict[str, Any]:
    """What only driver and Python workers know: how many tasks run, and names of threads of ours."""
    running = running_tasks(spark)
    jobs = list(spark.sparkContext.statusTracker().getActiveJobsIds())
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("sparkdl")]
    in_workers: list[str] = []
    if not running and not jobs:
        tasks = spark.range(0, slots, 1, slots).mapInArrow(_threads, "pid long, name string")
        in_workers = [f"{row.name} in worker {row.pid}" for row in tasks.collect()]
    return {"tasks": running, "jobs": jobs, "threads": threads + in_workers}


def _threads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    time.sleep(0.1)  # so that no worker gets two of these tasks
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("sparkdl")]
    yield pa.RecordBatch.from_arrays(
        [pa.array([os.getpid()] * len(names), pa.int64()), pa.array(names, pa.string())], ["pid", "name"]
    )


def main() -> None:
    global _on_interrupt
    folder, name, cluster = Path(sys.argv[1]), os.environ[processes.VARIABLE], json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what anything else prints
    spark = start(folder, cluster)
    _on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(json.dumps({"ready": os.getpid()}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        answer = remains(spark, request["remains"]) if "remains" in request else run(spark, folder, name, request)
        print(json.dumps(answer), file=answers)
    spark.stop()
    print(json.dumps({"stopped": True}), file=answers)


if __name__ == "__main__":
    main()
