"""A program of test_bigdl.py: an executor is killed while a BigDL model is trained, after the first checkpoint.

    python bigdl_killed.py FOLDER

Writes FOLDER/found.json: how many executors were ``killed``, with which ``iterations`` the last attempt began and ended, and
how many ``checkpoints`` there are.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
from benchmarks.applications import local_cluster

from sparkdl_comm.bigdl import installation
from sparkdl_comm.bigdl.installation import start_engine
from sparkdl_comm.networks import digits_28x28

EXECUTORS = 2
EXECUTOR_MIB = 1536
ITERATIONS = 300
EVERY = 20
_EXECUTOR = "CoarseGrainedExecutorBackend"
_WAIT_SECONDS = 60


def any_executor() -> psutil.Process:
    return next(filter(is_executor, psutil.Process().children(recursive=True)))


def is_executor(process: psutil.Process) -> bool:
    try:
        return any(_EXECUTOR in part for part in process.cmdline())
    except psutil.Error:  # it has just ended
        return False


def kill(executor: psutil.Process, folder: Path, killed: list[int], over: threading.Event) -> None:
    """As soon as there is a checkpoint."""
    for _ in range(_WAIT_SECONDS * 20):
        if over.wait(0.05):
            return
        if any(folder.glob("*/optimMethod-*")):
            executor.kill()
            killed.append(executor.pid)
            return


def main() -> None:
    folder = Path(sys.argv[1])
    conf = installation.spark_conf() | {
        "spark.sparkdl.comm.timeout": "30s",
        "spark.sparkdl.comm.ps.batching": "layerwise",
    }
    spark = local_cluster("bigdl_killed", EXECUTORS, EXECUTOR_MIB, conf)
    start_engine(spark.sparkContext, EXECUTORS, 1)

    from bigdl.dllib.nn.criterion import ClassNLLCriterion
    from bigdl.dllib.optim.optimizer import SGD, MaxIteration, SeveralIteration, TrainSummary
    from bigdl.dllib.utils.common import Sample

    from sparkdl_comm.bigdl.networks import lenet5
    from sparkdl_comm.bigdl.optimizer import IBatchOptimizer

    pixels, labels = (tensor.numpy() for tensor in digits_28x28())
    rows = [Sample.from_ndarray(pixels[row], np.array(labels[row] + 1.0)) for row in range(64)]
    data = spark.sparkContext.parallelize(rows, EXECUTORS)
    optimizer = IBatchOptimizer(lenet5(), data, ClassNLLCriterion(), MaxIteration(ITERATIONS), 32, SGD(0.01))
    summary = TrainSummary(str(folder / "summary"), "killed")
    optimizer.set_train_summary(summary)
    checkpoints = folder / "checkpoints"
    optimizer.set_checkpoint(SeveralIteration(EVERY), str(checkpoints))

    killed: list[int] = []
    over = threading.Event()
    killer = threading.Thread(target=kill, args=(any_executor(), checkpoints, killed, over))
    killer.start()
    optimizer.optimize()
    over.set()
    killer.join()
    steps = [int(step) for step in np.array(summary.read_scalar("Loss"))[:, 0]]
    models = len(list(checkpoints.rglob("model.*")))
    found = {"killed": len(killed), "iterations": [steps[0], steps[-1]], "checkpoints": models}
    (folder / "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
