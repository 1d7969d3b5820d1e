"""A program of its own: one step of a model above 2 GB on two executors. Prints one line of JSON."""

import functools
import json
import os
import sys
import threading
from pathlib import Path

import torch
from pyspark.sql import SparkSession
from torch import nn

import sparkdl_comm
from sparkdl_comm import TorchEstimator
from tests.faults.processes import VARIABLE, of_application

RATE = 0.1


class Huge(nn.Sequential):
    """599,829,253 parameters, 2.4 GB."""

    def __init__(self) -> None:
        layers = [nn.Linear(28, 17000), nn.ReLU(), nn.Linear(17000, 17000), nn.ReLU()]
        super().__init__(*layers, nn.Linear(17000, 17000), nn.ReLU(), nn.Linear(17000, 1253))


class MemoryWatch(threading.Thread):
    """Peaks of proportional set size, in bytes, of each process of this application and of all together."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[str, int] = {}
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.3):
            sizes = {}
            for process in of_application(os.environ[VARIABLE]):
                try:
                    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                    role = "driver" if process.pid == os.getpid() else process.name()
                    sizes[f"{role} {process.pid}"] = 1024 * int(rollup.split("\nPss:", 1)[1].split()[0])
                except (OSError, IndexError):
                    continue  # it went away
            sizes["together"] = sum(sizes.values())
            for name, size in sizes.items():
                self.peaks[name] = max(size, self.peaks.get(name, 0))


def reference(rows: list[tuple[list[float], int]]) -> nn.Module:
    torch.manual_seed(3)
    module = Huge()
    features, labels = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    nn.functional.cross_entropy(module(features), labels).backward()
    torch.optim.SGD(module.parameters(), lr=RATE).step()
    return module


def main(master: str, ranks: str) -> None:
    watch = MemoryWatch()
    watch.start()
    conf = {"spark.master": master, "spark.ui.enabled": "false", **sparkdl_comm.spark_conf(progress=False)}
    conf["spark.sparkdl.comm.ps.sharedMemory"] = "false"  # so that blocks of gigabytes cross the network
    spark = SparkSession.builder.config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    random = torch.Generator().manual_seed(1)
    rows = [(torch.randn(28, generator=random).tolist(), index % 10) for index in range(8)]
    estimator = TorchEstimator(
        model=Huge,
        loss="CrossEntropyLoss",
        optimizer=functools.partial(torch.optim.SGD, lr=RATE),
        batchSize=8,
        num_workers=int(ranks),
        strategy="ps",
        seed=3,
    )
    model = estimator.fit(spark.createDataFrame(rows, "features array<float>, label int"))
    heap = spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory()
    spark.stop()
    watch.done.set()
    expected = reference(rows)
    off = {
        name: ((tensor - other).double().norm() / other.double().norm()).item()
        for (name, tensor), other in zip(model.module.named_parameters(), expected.parameters(), strict=True)
    }
    parameters = sum(tensor.numel() for tensor in expected.parameters())
    report = {"parameters": parameters, "driver_heap": heap, "off": off, "peaks": watch.peaks, "summary": model.summary}
    print("REPORT " + json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
