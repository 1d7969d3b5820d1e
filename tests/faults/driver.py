"""A Spark application that is asked to fail: one JSON request a line on stdin, one answer a line on stdout.

A process of its own, because its executors are killed, and a process has one JVM.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import sparkdl_comm
from sparkdl_comm import TorchModel
from sparkdl_comm.estimator import TorchEstimator
from tests.faults import processes
from tests.faults.injection import Factory, Fault, Sgd

#: Seconds that tasks, segments and processes may take to go after an error.
SETTLE_SECONDS = 20.0


def start(folder: Path, master: str) -> SparkSession:
    conf = {
        "spark.master": master,
        "spark.app.name": "sparkdl_comm faults",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        # where the bridge has its socket
        "spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={folder / 'tmp'}",
        # a fault is to be seen, not to be got over
        **sparkdl_comm.spark_conf(progress=False, slot_timeout="60s", max_restarts=0),
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


def in_files(spark: SparkSession, path: str) -> DataFrame:
    """The same rows from 16 files. How many of these are a partition depends on the executors that are there."""
    if not Path(path).exists():
        rows(spark).repartition(16).write.parquet(path)
    return spark.read.parquet(path)


def estimator(strategy: str, fault: Fault | None, **settings: Any) -> TorchEstimator:
    return TorchEstimator(
        model=Factory(fault),
        loss="CrossEntropyLoss",
        optimizer=Sgd,
        batchSize=12,
        maxIter=2,
        num_workers=3,
        strategy=strategy,
        **settings,
    )


def weights(model: TorchModel) -> str:
    """Digest of all its tensors."""
    digest = hashlib.sha256()
    for tensor in model.module.state_dict().values():
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


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
        "cause": None if error.__cause__ is None else type(error.__cause__).__name__,
        "cause_text": str(error.__cause__)[:6000],
    }


def run(spark: SparkSession, name: str, request: dict[str, Any]) -> dict[str, Any]:
    fault = Fault(**request["fault"]) if request.get("fault") else None
    conf = request.get("conf") or {}
    answer: dict[str, Any] = {}
    for key, value in conf.items():
        spark.conf.set(key, value)
    begin = time.monotonic()
    try:
        settings = request.get("settings") or {}
        data = in_files(spark, request["files"]) if request["files"] else rows(spark, request.get("ragged", False))
        model = estimator(request["strategy"], fault, **settings).fit(data)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        answer["raised_at"] = time.monotonic()
        answer.update(describe(error))
    else:
        summary = {name: model.summary[name] for name in ("iterations", "resumed_at", "restarts")}
        answer.update(error=None, weights=weights(model), **summary)
    finally:
        for key in conf:
            spark.conf.unset(key)
    answer["seconds"] = time.monotonic() - begin
    answer.update(wait_until_quiet(spark, name))
    if fault is not None or request.get("ragged"):
        answer["again"] = again(spark, request["strategy"])
    return answer


def again(spark: SparkSession, strategy: str) -> dict[str, Any]:
    """A run without a fault, on the same application; `fit` waits until there are executors for it."""
    begin = time.monotonic()
    try:
        model = estimator(strategy, None).fit(rows(spark))
    except Exception:  # noqa: BLE001
        return {"error": traceback.format_exc(), "seconds": time.monotonic() - begin}
    return {"error": None, "seconds": time.monotonic() - begin, "iterations": model.summary["iterations"]}


def main() -> None:
    folder, name = Path(sys.argv[1]), os.environ[processes.VARIABLE]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what anything else prints
    spark = start(folder, sys.argv[2])
    print(json.dumps({"ready": os.getpid()}), file=answers)
    for line in sys.stdin:
        print(json.dumps(run(spark, name, json.loads(line))), file=answers)
    spark.stop()
    print(json.dumps({"stopped": True}), file=answers)


if __name__ == "__main__":
    main()
