"""A Spark application of bench_ps.py: fits of one emulated network, one for each way to cut it into batches.

A fit begins with two epochs in which it measures and plans, and then has as many epochs of equal length as are timed. Its
result is a JSON line.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.lab.emulated import EmulatedNetwork
from sparkdl_comm.lab.profile import Profile

#: What a way is called in the table -> spark.sparkdl.comm.ps.batching and .pushBatching. The paper batches pulls only.
WAYS = {
    "whole": ("whole", "whole"),
    "layerwise": ("layerwise", "layerwise"),
    "ibatch-pull": ("ibatch", "whole"),
    "ibatch": ("ibatch", "ibatch"),
    "optimal": ("optimal", "optimal"),
}
_WARM_UP_EPOCHS = 2


@dataclass(frozen=True)
class Job:
    """`profile`: the file that the network's is in; `ways`: of WAYS; `steps`: of an epoch; `epochs`: timed ones. Results go to
    the file `output`."""

    profile: str
    ways: list[str]
    ranks: int
    steps: int
    epochs: int
    output: str

    @classmethod
    def here(cls) -> Job:
        """From this program's only argument."""
        return cls(**json.loads(sys.argv[1]))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def iterations(self) -> int:
        """Of all fits together."""
        return len(self.ways) * (_WARM_UP_EPOCHS + self.epochs) * self.steps

    def profile_iterations(self) -> int:
        """So that the plan is in use before the first epoch that is timed: pulls change one step after it is made, pushes
        two."""
        return _WARM_UP_EPOCHS * self.steps - 3


def mean(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Outputs [rows, 1]; a rank has rows in every step."""
    return (output.reshape(-1) * target).mean()


def train(spark: SparkSession, data: DataFrame, job: Job, profile: Profile, way: str) -> TorchModel:
    batching, push = WAYS[way]
    spark.conf.set("spark.sparkdl.comm.ps.batching", batching)
    spark.conf.set("spark.sparkdl.comm.ps.pushBatching", push)
    return TorchEstimator(
        model=functools.partial(EmulatedNetwork, profile, outputs=1),
        loss=mean,
        optimizer=functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        batchSize=job.ranks,
        maxIter=_WARM_UP_EPOCHS + job.epochs,
        num_workers=job.ranks,
        strategy="ps",
    ).fit(data)


def result(model: TorchModel, job: Job) -> dict[str, Any]:
    summary = model.summary or {}
    digest = hashlib.sha256()
    for tensor in model.module.state_dict().values():
        digest.update(tensor.numpy().data)
    return {
        "samples": [row["seconds"] / job.steps for row in model.history[_WARM_UP_EPOCHS:]],
        "iterations": summary["iterations"],
        "bytes": sum(summary["bytes"].values()) / summary["iterations"],
        "batching": summary["batching"],
        "weights": digest.hexdigest(),
    }


def results(spark: SparkSession, job: Job) -> Iterator[dict[str, Any]]:
    spark.conf.set("spark.sparkdl.comm.ps.profileIterations", str(job.profile_iterations()))
    count = job.ranks * job.steps
    table = pd.DataFrame({"features": [[float(row % 7), 1.0] for row in range(count)], "label": [1.0] * count})
    data = spark.createDataFrame(table, "features array<float>, label float").repartition(job.ranks).cache()
    profile = Profile.read(Path(job.profile))
    for way in job.ways:
        yield {"way": way, **result(train(spark, data, job, profile, way), job)}


def main() -> None:
    job = Job.here()
    spark = SparkSession.builder.appName("bench_ps").getOrCreate()
    with open(job.output, "w") as output:
        for line in results(spark, job):
            print(json.dumps(line), file=output, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
