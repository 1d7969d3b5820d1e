"""Spark application of the benchmark `ps`: fits of one network, one for each way to cut it into batches.

A fit first measures, plans and tries its plan for five epochs. Timed epochs of equal length follow.
"""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import torch
from benchmarks.applications import answer
from benchmarks.breakdown import overlapped
from benchmarks.case import share_of
from benchmarks.workload import trained_by_ddp
from lab.emulated import EmulatedNetwork
from lab.settings import applied
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import DataFrame, SparkSession
from torch import nn

from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.networks import LeNet5
from sparkdl_comm.report.timeline import Timeline
from sparkdl_comm.sim.profile import Profile

#: Least size of a bucket of all-reduced gradients.
BUCKET = "256KiB"


def _ps(pull: str, push: str) -> dict[str, str]:
    return {"strategy": "ps", "ps.batching": pull, "ps.pushBatching": push}


def _all_reduce(name: str) -> dict[str, str]:
    return {"strategy": name, "collective.bucket": BUCKET}


#: Way -> its settings of spark.sparkdl.comm. The paper batches pulls only, and requests one batch at a time. All-reduces
#: overlap backward.
WAYS: dict[str, dict[str, str]] = {
    "whole": _ps("whole", "whole"),
    "layerwise": _ps("layerwise", "layerwise"),
    "paper": _ps("paper", "whole"),
    "paper-layerwise": _ps("paper-layerwise", "whole"),
    "ibatch": _ps("ibatch", "ibatch"),
    "ring": _all_reduce("ring"),
    "bml": _all_reduce("bml"),
}
#: All-reduces of other benchmarks.
OTHER_WAYS = {name: _all_reduce(name) for name in ("p2p-ps", "lp", "tree")}
#: Ways that push a hundredth of the gradients.
SPARSE_WAYS = {f"{name}-sparse": WAYS[name] | {"compression": "exact:0.01"} for name in ("whole", "ibatch")}
_SETTINGS = WAYS | OTHER_WAYS | SPARSE_WAYS
#: Way of torch's DistributedDataParallel over gloo, under TorchDistributor.
DDP = "ddp"
_WARM_UP_EPOCHS = 5
_INPUTS = 784


class SmallVgg(nn.Sequential):
    """Network whose first layers compute much and whose last layers are large, like VGG.

    Input [rows, 784] (28 x 28, flat), output [rows, 10].
    """

    def __init__(self) -> None:
        layers: list[nn.Module] = [nn.Unflatten(1, (1, 28, 28))]
        for inputs, outputs in ((1, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(576, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
        super().__init__(*layers)


#: Networks that really compute.
REAL: dict[str, Callable[[], nn.Module]] = {"real:lenet5": LeNet5, "real:vgg": SmallVgg}


@dataclass(frozen=True)
class Job:
    """Fits of a network by several ways.

    :param network: key of REAL, or name of an emulated network's profile.
    :param forward: seconds of forward of an emulated network.
    :param ways: keys of WAYS, OTHER_WAYS or SPARSE_WAYS, or DDP.
    :param rows: rows of a rank in a step.
    :param steps: steps of an epoch.
    :param epochs: timed epochs.
    :param warmup: fits before all others, so that JVMs compile.
    :param timeline: file for the timeline of the first way.
    """

    network: str
    forward: float
    ways: list[str]
    ranks: int
    rows: int
    steps: int
    epochs: int
    warmup: int
    timeline: str | None = None

    def profile_iterations(self) -> int:
        """Return the iterations of the profile, so that the choice is in use before the first timed epoch.

        The profile is followed by trials of the plan and of up to three plainer ways. Pulls change one step later, and
        pushes two.
        """
        return (_WARM_UP_EPOCHS * self.steps - 3) // 5

    def make_network(self) -> Callable[[], nn.Module]:
        if self.network in REAL:
            return REAL[self.network]
        return functools.partial(EmulatedNetwork, share_of(self.network, self.forward))


def train(spark: SparkSession, data: DataFrame, job: Job, way: str) -> TorchModel:
    settings = {
        **_SETTINGS[way],
        "ps.profileIterations": job.profile_iterations(),
        "timeline": job.epochs * job.steps,
    }
    with applied(spark, settings):
        return TorchEstimator(
            model=job.make_network(),
            loss="CrossEntropyLoss",
            optimizer=functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
            batchSize=job.ranks * job.rows,
            maxIter=_WARM_UP_EPOCHS + job.epochs,
            num_workers=job.ranks,
        ).fit(data)


def train_with_ddp(job: Job) -> dict[str, Any]:
    """Train one rank under TorchDistributor. The driver gets rank 0's result."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    profile = share_of(job.network, job.forward)
    samples, verified = trained_by_ddp(
        EmulatedNetwork(profile, outputs=1),
        profile,
        job.rows,
        steps=job.steps,
        warmup=_WARM_UP_EPOCHS,
        repeats=job.epochs,
        bucket_mb=25 * profile.parameters / Profile.load(job.network).parameters,
    )
    dist.destroy_process_group()
    return {"samples": samples, "verified": verified, "bytes": 2 * (job.ranks - 1) * 4 * profile.parameters}


def weights(model: TorchModel) -> torch.Tensor:
    """Return all weights, flat."""
    return torch.cat([tensor.flatten() for tensor in model.module.state_dict().values()])


def result(model: TorchModel, job: Job, others: torch.Tensor) -> dict[str, Any]:
    """Return the result of a fit. `others`: expected weights, but for the order of additions."""
    summary, found = model.summary or {}, weights(model)
    return {
        "samples": [row["seconds"] / job.steps for row in model.history[_WARM_UP_EPOCHS:]],
        "phases": phases(model.timeline()),
        "overlapped": mean_overlapped(model.timeline()),
        "bytes": sum(summary["bytes"].values()) / summary["iterations"],
        "batching": summary.get("batching", {}),
        "weights": hashlib.sha256(found.numpy().data).hexdigest(),
        "verified": bool((found - others).abs().max() <= 1e-5 * others.abs().max()),
    }


def phases(timeline: Timeline) -> dict[str, float]:
    """Return the mean seconds of an iteration in each phase. A phase within another one counts once."""
    spent: dict[str, float] = defaultdict(float)
    around: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for span in timeline.spans:
        if "batch" in span:
            continue
        outer, seconds = around[span["rank"]], span["end"] - span["begin"]
        while outer and outer[-1]["end"] <= span["begin"]:
            outer.pop()
        if outer:
            spent[outer[-1]["name"]] -= seconds
        outer.append(span)
        spent[span["name"]] += seconds
    return {name: seconds / len(timeline.iterations) / timeline.world for name, seconds in spent.items()}


def mean_overlapped(timeline: Timeline) -> float:
    """Return the mean seconds of an iteration in which a rank computed while it received something."""
    by_rank = ([span for span in timeline.spans if span["rank"] == rank] for rank in range(timeline.world))
    return sum(map(overlapped, by_rank)) / len(timeline.iterations) / timeline.world


def results(spark: SparkSession, job: Job) -> Iterator[dict[str, Any]]:
    count, random = job.ranks * job.rows * job.steps, np.random.default_rng(5)
    features = random.random((count, _INPUTS), np.float32)
    table = pd.DataFrame({"features": list(features), "label": random.integers(0, 10, count)})
    data = spark.createDataFrame(table, "features array<float>, label long").coalesce(1).repartition(job.ranks).cache()
    for _ in range(job.warmup):
        train(spark, data, job, "layerwise")
    others: dict[bool, torch.Tensor] = {}
    for way in job.ways:
        if way == DDP:
            distributor = TorchDistributor(num_processes=job.ranks, local_mode=False, use_gpu=False)
            yield {"way": way, **distributor.run(train_with_ddp, job)}
        else:
            model = train(spark, data, job, way)
            if job.timeline and way == job.ways[0]:
                model.timeline().save(job.timeline)
            is_sparse = way in SPARSE_WAYS
            yield {"way": way, "sparse": is_sparse, **result(model, job, others.setdefault(is_sparse, weights(model)))}


if __name__ == "__main__":
    answer("bench_ps", Job, results)
