"""Time per iteration of the parameter server.

    python python/benchmarks ps --json

Beside gloo's: same executors, same network, same run. For each number of executors (local-cluster, one core each) and
each network: one fit of every strategy to warm up, then `--repeats` fits of each in turn, and the medians. Verified: all
ranks of a fit end with the same bits (fit refuses otherwise), and after ten steps all strategies have the same weights, to
1e-5 of the largest.

    python python/benchmarks ps --topology star:8 --rate auto:1 --model vgg19 --batching whole,layerwise,ibatch --json

With its layers cut into batches in one way or another, on an emulated network of that shape (see ibatch/network.py, which has
the theory). Computing is emulated: by a device `--slowdown` times slower than that of the profiles, which does 1e12
operations a second, for two cores send no faster; and of each layer a share, parameters and times alike, so that forward
takes `--forward` seconds. Models `real:…` compute. `paper` is what the paper has: batches of pulls alone, each asked for when
the one before is here; `ibatch-pull` asks for all at once. `ring`, `bml` and `ddp` (torch's, under TorchDistributor; computing
is emulated) are all-reduces that overlap backward. `…-sparse` pushes a hundredth of the gradients; theory is that of whole
ones. Verified: all ways of `ps` end with the same bits, sparse ones among themselves, the other ones with the same weights, to
1e-5 of the largest, and DDP with what one process finds.
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
from benchmarks.applications import conf_of, local_cluster
from benchmarks.command import Note
from benchmarks.ibatch import network
from benchmarks.ibatch.job import DDP, REAL, SPARSE_WAYS, WAYS
from lab.arguments import names_of, positive, topology_of, whole_numbers
from lab.bench import Row, measure, versions
from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm import TorchEstimator, TorchModel, spark_conf
from sparkdl_comm.errors import SparkdlCommError
from sparkdl_comm.networks import LeNet5, SmallLeNet, WidePerceptron, parameter_count

#: Network, rows per step over all ranks, and how many times `--steps` a timed fit does.
NETWORKS = {"small": (SmallLeNet, 128, 5.0), "lenet5": (LeNet5, 96, 1.0), "wide": (WidePerceptron, 96, 1 / 3)}
BATCHES = 10


def made(spark: SparkSession, count: int) -> DataFrame:
    random = np.random.default_rng(3)
    table = pd.DataFrame(
        {"features": list(random.random((count, 784), np.float32)), "label": random.integers(0, 10, count)}
    )
    return spark.createDataFrame(table, "features array<float>, label long").cache()


def train(data: DataFrame, network: str, strategy: str, executors: int, steps: int) -> TorchModel:
    model, batch, _ = NETWORKS[network]
    return TorchEstimator(
        model=model,
        loss="CrossEntropyLoss",
        optimizer=functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        batchSize=batch,
        maxIter=max(1, steps // BATCHES),
        num_workers=executors,
        strategy=strategy,
    ).fit(data)


def difference(one: TorchModel, other: TorchModel) -> float:
    """Largest difference of any weight, relative to the largest weight."""
    weights = other.module.state_dict()
    largest = max(tensor.abs().max().item() for tensor in weights.values())
    return (
        max((tensor - weights[name]).abs().max().item() for name, tensor in one.module.state_dict().items()) / largest
    )


def bench(data: DataFrame, network: str, executors: int, strategies: list[str], options: Namespace) -> list[Row]:
    # After many steps even another order of the same additions shows; after ten, only a mistake does.
    short = {strategy: train(data, network, strategy, executors, BATCHES) for strategy in strategies}
    off = max(difference(short[strategy], short[strategies[0]]) for strategy in strategies)
    steps = int(options.steps * NETWORKS[network][2])

    def fit(strategy: str) -> dict[str, Any]:
        summary = train(data, network, strategy, executors, steps).summary
        assert summary is not None
        return summary

    runs = measure(
        {strategy: functools.partial(fit, strategy) for strategy in strategies},
        warmup=options.warmup,
        repeats=options.repeats,
    )
    medians = {name: statistics.median(run["seconds_per_iteration"] for run in done) for name, done in runs.items()}
    parameters = parameter_count(NETWORKS[network][0]())
    # What must reach a rank: N-1 of N shards of the sums, and all others' contributions to its own.
    necessary = 2 * (executors - 1) * parameters * 4
    table = []
    for strategy, done in runs.items():
        moved = sum(done[-1]["bytes"].values()) / done[-1]["iterations"]
        phases = {name: statistics.median(run["phases"][name] for run in done) for name in done[0]["phases"]}
        table.append(
            Row(
                suite="ps",
                case=network,
                algorithm=strategy,
                topology="loopback",
                rate_mbit=None,
                world=executors,
                bytes=round(moved),
                samples=[run["seconds_per_iteration"] for run in done],
                verified=off < 1e-5,
                versions=versions("pyspark", "torch"),
                extra={
                    "parameters": parameters,
                    "batch": NETWORKS[network][1],
                    "iterations": done[-1]["iterations"],
                    "iterations_per_second": 1 / medians[strategy],
                    "ratio_to_gloo": medians[strategy] / medians["gloo"] if "gloo" in medians else None,
                    "phases": phases,
                    "bytes_over_necessary": moved / necessary,
                    "difference": off,
                },
            )
        )
    return table


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    if options.topology:
        yield from network.rows(options, note)
        return
    for executors in options.executors:
        conf = spark_conf(progress=False) | conf_of(options.conf)
        spark = local_cluster("bench_ps", executors, options.memory or 2048, conf)
        for network_name in options.networks:
            data = made(spark, NETWORKS[network_name][1] * BATCHES)
            yield from bench(data, network_name, executors, options.strategies.split(","), options)
            data.unpersist()
        spark.stop()


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument("--steps", type=positive, help="iterations that are timed together: 60, on the lab 4")
    parser.add_argument("--memory", type=int, help="MiB of each executor: 2048, on the lab 512")
    beside = parser.add_argument_group("beside gloo")
    beside.add_argument("--executors", type=whole_numbers(), default="2,3", help="numbers of executors")
    beside.add_argument(
        "--networks", type=names_of(NETWORKS), default=",".join(NETWORKS), help="the wide one does a third of --steps"
    )
    beside.add_argument("--strategies", default="ps,gloo")
    beside.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="of Spark, to try settings")
    lab = parser.add_argument_group("in batches, on the lab")
    lab.add_argument("--topology", type=topology_of, help="star:N, hosts:MxS, fattree:k, bcube:m,k")
    networks = f"profiles of networks, or {', '.join(REAL)}; default: googlenet, inception_v3, vgg19"
    lab.add_argument("--model", help=networks)
    known = [*WAYS, DDP, *SPARSE_WAYS]
    lab.add_argument(
        "--batching",
        type=names_of(known),
        help=f"of {', '.join(known)}; default: {', '.join(WAYS)}, and {DDP} where computing is emulated",
    )
    lab.add_argument(
        "--rate",
        default="auto:1",
        help="Mbit/s of each link, or auto:R, at which a pull takes R times as long as forward",
    )
    lab.add_argument("--schedule", help="rates that change every second while fits run: N1, N2 or N3, see lab/rates.py")
    lab.add_argument("--delay", default="0", help="ms that the lab adds to the start-up of every communication")
    lab.add_argument("--forward", type=float, default=0.5, help="seconds to which networks are scaled")
    lab.add_argument("--slowdown", type=float, default=60.0, help="of the device that computes")
    lab.add_argument("--rows", type=positive, default=2, help="of a rank in a step; waits are what they are")
    lab.add_argument("--timeout", type=float, default=600.0, help="seconds for all fits of a network")
    options = parser.parse_args(words)
    options.steps = options.steps or (4 if options.topology else 60)
    if not options.topology:
        if options.quick:
            options.executors, options.steps, options.repeats = [2], BATCHES, 1
        return options
    options.memory = f"{options.memory or 512}m"
    if (
        options.quick
    ):  # with fewer than four steps of an epoch no iteration is measured before the plan, so nothing is tried
        options.model, options.forward, options.steps, options.repeats = options.model or "vgg19", 0.1, 4, 1
    options.model = options.model or "googlenet,inception_v3,vgg19"
    try:
        options.cases = network.cases(options)
    except SparkdlCommError as error:
        parser.error(str(error))
    return options
