"""Time per iteration of the parameter server beside gloo's, same executors, same network, same run.

    python python/bench_ps.py --json

For each number of executors (local-cluster, one core each) and each network: one fit of every strategy to warm up, then
`--repeats` fits of each in turn, and the medians. Verified: all ranks of a fit end with the same bits (fit refuses
otherwise), and after ten steps all strategies have the same weights, to 1e-5 of the largest.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from typing import Any

import numpy as np
import pandas as pd
import pyspark
import torch
from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm import TorchEstimator, TorchModel, spark_conf
from sparkdl_comm.networks import LeNet5, SmallLeNet, WidePerceptron, parameter_count

#: Network, rows per step over all ranks, and how many times `--steps` a timed fit does.
NETWORKS = {"small": (SmallLeNet, 128, 5.0), "lenet5": (LeNet5, 96, 1.0), "wide": (WidePerceptron, 96, 1 / 3)}
BATCHES = 10


def session(executors: int, memory: int) -> SparkSession:
    conf = {
        **spark_conf(progress=False),
        "spark.master": f"local-cluster[{executors},1,{memory}]",
        "spark.executor.memory": f"{memory}m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = SparkSession.builder.appName("bench_ps").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def rows(spark: SparkSession, count: int) -> DataFrame:
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


def bench(data: DataFrame, network: str, executors: int, strategies: list[str], steps: int, repeats: int) -> list[dict]:
    # After many steps even another order of the same additions shows; after ten, only a mistake does.
    short = {strategy: train(data, network, strategy, executors, BATCHES) for strategy in strategies}
    off = max(difference(short[strategy], short[strategies[0]]) for strategy in strategies)
    for strategy in strategies:
        train(data, network, strategy, executors, steps)
    runs: dict[str, list[dict[str, Any]]] = {strategy: [] for strategy in strategies}
    for _ in range(repeats):
        for strategy in strategies:
            summary = train(data, network, strategy, executors, steps).summary
            assert summary is not None
            runs[strategy].append(summary)
    parameters = parameter_count(NETWORKS[network][0]())
    # What must reach a rank: N-1 of N shards of the sums, and all others' contributions to its own.
    necessary = 2 * (executors - 1) * parameters * 4
    medians = {name: statistics.median(run["seconds_per_iteration"] for run in done) for name, done in runs.items()}
    table = []
    for strategy, done in runs.items():
        seconds = [run["seconds_per_iteration"] for run in done]
        moved = sum(done[-1]["bytes"].values()) / done[-1]["iterations"]
        phases = {name: statistics.median(run["phases"][name] for run in done) for name in done[0]["phases"]}
        table.append(
            {
                "suite": "ps",
                "case": network,
                "algorithm": strategy,
                "topology": "loopback",
                "world": executors,
                "parameters": parameters,
                "batch": NETWORKS[network][1],
                "iterations": done[-1]["iterations"],
                "seconds": medians[strategy],
                "spread": max(seconds) - min(seconds),
                "iterations_per_second": 1 / medians[strategy],
                "ratio_to_gloo": medians[strategy] / medians["gloo"] if "gloo" in medians else None,
                "phases": phases,
                "bytes": moved,
                "bytes_over_necessary": moved / necessary,
                "difference": off,
                "verified": off < 1e-5,
                "compute": "real",
                "versions": {"spark": pyspark.__version__, "torch": torch.__version__},
            }
        )
    return table


def show(row: dict[str, Any]) -> None:
    phases = " ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in row["phases"].items() if seconds)
    ratio = f"{row['ratio_to_gloo']:.2f}x gloo" if row["ratio_to_gloo"] else ""
    print(
        f"{row['world']} executors  {row['case']:7}{row['parameters']:>11,}  {row['algorithm']:5}"
        f"{row['seconds'] * 1e3:9.1f} ms +- {row['spread'] * 500:.1f}  {row['iterations_per_second']:6.1f}/s  {ratio:11}"
        f"  bytes/necessary {row['bytes_over_necessary']:.3f}  {'ok' if row['verified'] else 'WRONG RESULT'}"
        f"  [ms: {phases}]",
        file=sys.stderr,
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executors", default="2,3", help="numbers of executors")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--strategies", default="ps,gloo")
    parser.add_argument(
        "--steps", type=int, default=60, help="iterations of a timed fit; the wide network does a third"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", type=int, default=2048, help="MiB of each executor")
    parser.add_argument("--quick", action="store_true", help="one repeat of ten steps, two executors: does it work?")
    parser.add_argument("--json", action="store_true", help="JSON rows on standard output, the table on standard error")
    options = parser.parse_args()
    if options.quick:
        options.executors, options.steps, options.repeats = "2", BATCHES, 1
    table = []
    for executors in map(int, options.executors.split(",")):
        spark = session(executors, options.memory)
        for network in options.networks.split(","):
            data = rows(spark, NETWORKS[network][1] * BATCHES)
            steps = int(options.steps * NETWORKS[network][2])
            done = bench(data, network, executors, options.strategies.split(","), steps, options.repeats)
            data.unpersist()
            for row in done:
                show(row)
            table += done
        spark.stop()
    if options.json:
        print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
