"""A program for spark-submit: `endless_fit.py FOLDER STRATEGY`. A fit that only Ctrl-C ends, or the end of the application, as
soon as there is a file "stop" in FOLDER. Each rank says in FOLDER when it has begun, and the driver which exception came out.
"""

import functools
import sys
import threading
import time
from pathlib import Path

import torch
from pyspark.sql import SparkSession

from sparkdl_comm import Callback, TorchEstimator
from tests.integration.nets import Small

FOLDER, STRATEGY = Path(sys.argv[1]), sys.argv[2]


class Begun(Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, state):
        if state.step == 1:
            (self.folder / f"rank {state.rank}").touch()


def stop(spark: SparkSession) -> None:
    while not (FOLDER / "stop").exists():
        time.sleep(0.1)
    spark.stop()


spark = SparkSession.builder.getOrCreate()
threading.Thread(target=stop, args=(spark,), daemon=True).start()
data = spark.createDataFrame([([float(i)] * 28, i % 10) for i in range(24)], "features array<float>, label int")
estimator = TorchEstimator(
    model=Small,
    loss="CrossEntropyLoss",
    optimizer=functools.partial(torch.optim.SGD, lr=0.001),
    callbacks=[Begun(FOLDER)],
    maxIter=1_000_000,
    num_workers=2,
    strategy=STRATEGY,
)
try:
    estimator.fit(data)
except BaseException as error:
    (FOLDER / "raised").write_text(type(error).__name__)
    (FOLDER / "message").write_text(str(error))
    raise
