"""Time per iteration of the parameter server.

    python python/benchmarks ps --json

Without a topology, `ps+whole` stands beside `gloo` on the same executors, of one core each in local-cluster. A fit is
too short to try batches. For each number of executors and each network, both have one fit to warm up and then
`--repeats` fits, in turn. Verified: all ranks of a fit end with the same bits (fit refuses otherwise), and after ten
steps both have the same weights, to 1e-5 of the largest.

    python python/benchmarks ps --topology star:8 --rate auto:1 --model vgg19 --batching whole,layerwise,ibatch --json

With a topology, `--batching` lists configurations, which cut layers into batches differently, or all-reduce. They run on
an emulated network. ibatch/network.py has the theory.
Computing is emulated: each layer has the same share of its parameters and times, so that forward takes `--forward`
seconds on a slow device (see case.py). Models `real:…` compute.

- `paper` batches only pulls, and requests each batch when the one before has arrived.
- `ring`, `bml` and `ddp` are all-reduces that overlap backward. `ddp` is torch's, under TorchDistributor.
- `…-sparse` pushes a hundredth of the gradients. Its theory is that of whole gradients.

Verified: all configurations of `ps` with whole gradients end with the same bits, and so do all sparse ones. All-reduces
end with the same weights, to 1e-5 of the largest, and those of DDP are the weights of one process.
"""

from __future__ import annotations

import functools
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from benchmarks.applications import local_cluster
from benchmarks.command import Note
from benchmarks.ibatch import network
from benchmarks.ibatch.network import DDP, REAL, SPARSE_WAYS, WAYS
from lab.arguments import names_of, positive, topology_of
from lab.bench import Row, measure
from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm import TorchEstimator, TorchModel, spark_conf
from sparkdl_comm.errors import SparkdlCommError
from sparkdl_comm.networks import LeNet5, SmallLeNet, WidePerceptron, parameter_count

#: Network, rows per step of all ranks together, and steps of a timed fit.
NETWORKS = {"small": (SmallLeNet, 128, 300), "lenet5": (LeNet5, 96, 60), "wide": (WidePerceptron, 96, 20)}
#: Strategies, by the names in results.
STRATEGIES = {"ps": "ps+whole", "gloo": "gloo"}
#: Numbers of executors, and MiB of each.
EXECUTORS, MEMORY = (2, 3), 2048
#: Steps of an epoch.
BATCHES = 10


def made(spark: SparkSession, count: int) -> DataFrame:
    random = np.random.default_rng(3)
    table = pd.DataFrame(
        {"features": list(random.random((count, 784), np.float32)), "label": random.integers(0, 10, count)}
    )
    return spark.createDataFrame(table, "features array<float>, label long").cache()


def train(data: DataFrame, network: str, name: str, executors: int, steps: int) -> TorchModel:
    model, batch, _ = NETWORKS[network]
    return TorchEstimator(
        model=model,
        loss="CrossEntropyLoss",
        optimizer=functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        batchSize=batch,
        maxIter=max(1, steps // BATCHES),
        num_workers=executors,
        strategy=STRATEGIES[name],
    ).fit(data)


def difference(one: TorchModel, other: TorchModel) -> float:
    """Return the largest difference of any weight, relative to the largest weight."""
    ours, theirs = one.module.state_dict(), other.module.state_dict()
    largest = max(tensor.abs().max().item() for tensor in theirs.values())
    return max((tensor - theirs[name]).abs().max().item() for name, tensor in ours.items()) / largest


def bench(data: DataFrame, network: str, executors: int, options: Namespace) -> Iterator[Row]:
    # Ten steps show a mistake. Many steps also show another order of the same additions.
    ps, gloo = (train(data, network, name, executors, BATCHES) for name in STRATEGIES)
    off = difference(gloo, ps)
    steps = BATCHES if options.quick else NETWORKS[network][2]

    def fit(name: str) -> dict[str, Any]:
        summary = train(data, network, name, executors, steps).summary
        assert summary is not None
        return summary

    runs = measure(
        {name: functools.partial(fit, name) for name in STRATEGIES},
        warmup=options.warmup,
        repeats=options.repeats,
    )
    for name, done in runs.items():
        yield Row(
            suite="ps",
            case=network,
            algorithm=name,
            world=executors,
            bytes=round(sum(done[-1]["bytes"].values()) / done[-1]["iterations"]),
            samples=[run["seconds_per_iteration"] for run in done],
            verified=off < 1e-5,
            extra={
                "parameters": parameter_count(NETWORKS[network][0]()),
                "batch": NETWORKS[network][1],
                "iterations": done[-1]["iterations"],
                "phases": {name: statistics.median(run["phases"][name] for run in done) for name in done[0]["phases"]},
                "difference": off,
            },
        )


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    if options.topology:
        yield from network.rows(options, note)
        return
    for executors in EXECUTORS[: 1 if options.quick else None]:
        spark = local_cluster("bench_ps", executors, MEMORY, spark_conf(progress=False))
        for network_name, (_, batch, _) in NETWORKS.items():
            data = made(spark, batch * BATCHES)
            yield from bench(data, network_name, executors, options)
            data.unpersist()
        spark.stop()


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    lab = parser.add_argument_group("in batches, on the lab")
    lab.add_argument("--topology", type=topology_of, help="star:N, hosts:MxS, fattree:k, bcube:m,k")
    networks = f"profiles of networks, or {', '.join(REAL)} (default: googlenet, inception_v3, vgg19)"
    lab.add_argument("--model", help=networks)
    known = [*WAYS, DDP, *SPARSE_WAYS]
    lab.add_argument(
        "--batching",
        type=names_of(known),
        help=f"any of {', '.join(known)} (default: {', '.join(WAYS)}, and {DDP} where computing is emulated)",
    )
    lab.add_argument(
        "--rate",
        default="auto:1",
        help="Mbit/s of each link, or auto:R, at which a pull takes R times as long as forward",
    )
    lab.add_argument("--delay", default="0", help="ms added to each start-up")
    lab.add_argument("--forward", type=float, default=0.5, help="seconds of forward")
    lab.add_argument("--rows", type=positive, default=2, help="rows of a rank in a step; waits do not change")
    lab.add_argument("--timeout", type=float, default=600.0, help="seconds for all fits of a network")
    options = parser.parse_args(words)
    if options.quick:
        options.model, options.forward = options.model or "vgg19", 0.1
    options.model = options.model or "googlenet,inception_v3,vgg19"
    try:
        options.cases = network.cases(options) if options.topology else []
    except SparkdlCommError as error:
        parser.error(str(error))
    return options
