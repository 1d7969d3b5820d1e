"""Systems that train on an emulated network, beside the bound of its links: torch DDP, BigDL, and this package.

    python python/benchmarks peers --topology star:9 --rate 200 --json

There is one rank per host, or S with `hosts:MxS`. All systems run on the same emulated network, one after the other. The
links' counters prove that their data crossed the links. A link lets a burst of 80 KiB pass at once, so small models can
be faster than theory.

A row is an iteration of synchronous SGD, in an application on a Spark standalone cluster on that network. A perceptron
of the given bytes of float32 parameters has a few rows per rank. An iteration is the forward and backward pass, the
system's exchange of gradients and parameters, and the update. Its time is a run's, divided by `--steps`. Theory is an
all-reduce of the parameters' bytes, without computing. The weights after the last step are compared with those of one
process.

A system is skipped with one line if it is not installed:

- `torch-ddp`: DistributedDataParallel over gloo, under pyspark's TorchDistributor.
- `bigdl`: BigDL's DistriOptimizer, with float32 on the wire, by MKL and mkldnn. `make bigdl` installs it.
- `sparkdl`: this package's TorchEstimator, with the strategies ps+whole and gloo. A fit is too short to try batches.
"""

from __future__ import annotations

import functools
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from benchmarks import workload
from benchmarks.applications import BIGDL, answer, crossing, python_path, submit
from benchmarks.command import Note
from benchmarks.workload import LEARNING_RATE, hidden_of, loss, nbytes, perceptron, right, trained_by_ddp
from lab import Lab
from lab.arguments import link_rate, names_of, positive, sizes, topology_of
from lab.bench import Row, allreduce_seconds, versions
from lab.spark import SparkCluster
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

from sparkdl_comm import TorchEstimator
from sparkdl_comm.conf import PREFIX
from sparkdl_comm.errors import InputError, LabError, LabUnavailableError, SparkdlCommError

#: Rows of a rank in a step, memory of an executor, and seconds for all runs of a system.
ROWS, MEMORY, TIMEOUT = 4, "1g", 600.0


class System(NamedTuple):
    """System that trains.

    :param name: torch-ddp, sparkdl or bigdl.
    :param installed: versions of BigDL's packages.
    :param conf: settings of Spark.
    :param environment: variables of the driver.
    """

    algorithm: str
    name: str
    conf: Mapping[str, str] = {}
    installed: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}


def torch_ddp() -> Iterator[System]:
    yield System("torch-ddp", "torch-ddp")


def bigdl() -> Iterator[System]:
    """Yield BigDL by engine.

    :raises LabUnavailableError: it is not installed.
    """
    jars = sorted(map(str, BIGDL.glob("bigdl/share/*/lib/*.jar")))
    there = {found.name: found.version for found in metadata.distributions(path=[str(BIGDL)])}
    found = {name: version for name, version in there.items() if name.startswith("bigdl")}
    if not {"bigdl-dllib-spark3", "bigdl-core"} <= found.keys() or not jars:
        raise LabUnavailableError(f"no BigDL in {BIGDL}: `make bigdl` installs it")
    # The jars are on the class path and not shipped, as every host is this machine.
    conf = {f"spark.{end}.extraClassPath": ":".join(jars) for end in ("driver", "executor")}
    path = python_path(BIGDL)
    conf["spark.executorEnv.PYTHONPATH"] = path
    for algorithm, engine in (("bigdl-mkl", "mklblas"), ("bigdl-mkldnn", "mkldnn")):
        conf |= {f"spark.{end}.extraJavaOptions": f"-Dbigdl.engineType={engine}" for end in ("driver", "executor")}
        yield System(algorithm, "bigdl", dict(conf), found, {"PYTHONPATH": path})


def sparkdl() -> Iterator[System]:
    for name, strategy in (("ps", "ps+whole"), ("gloo", "gloo")):
        yield System(f"sparkdl-{name}", "sparkdl", {f"{PREFIX}strategy": strategy})


PEERS: dict[str, Callable[[], Iterator[System]]] = {"torch-ddp": torch_ddp, "bigdl": bigdl, "sparkdl": sparkdl}


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Train with all systems, and yield their rows of results. Note which systems are skipped or failed, and go on.

    :raises LabUnavailableError: all were skipped. LabError: some failed.
    """
    systems: list[System] = []
    for peer in filter(options.peers.__contains__, PEERS):
        try:
            systems += PEERS[peer]()
        except LabUnavailableError as reason:
            note(f"{peer} skipped: {reason}")
    if not systems:
        raise LabUnavailableError("all peers")
    failed = []
    with Lab(options.topology) as lab, lab.spark(memory=MEMORY) as spark:
        for system in systems:
            try:
                yield from trained(lab, spark, system, options)
            except SparkdlCommError as error:
                note(f"{system.algorithm} failed: {error}")
                failed.append(system.algorithm)
    if failed:
        raise LabError(", ".join(failed))


def trained(lab: Lab, spark: SparkCluster, system: System, options: Namespace) -> Iterator[Row]:
    """Train with a system, and yield its rows of results.

    :raises LabError: the application failed, or its data did not cross the links.
    """
    topology = options.topology
    counts = options.steps, options.warmup, options.repeats
    job = Job(system.name, [hidden_of(size) for size in options.bytes], ROWS, *counts, topology.world, TIMEOUT)
    is_ours = system.name == "sparkdl"
    nic = {} if is_ours else {"spark.executorEnv.GLOO_SOCKET_IFNAME": lab.layout.node(0).interface(0)}
    program = Path(__file__).with_name("bigdl_job.py") if system.name == "bigdl" else Path(__file__)
    # In each iteration every host needs all bytes: gradients of the others, or updated parameters.
    with crossing(lab, job.iterations * job.total_bytes):
        results = submit(
            spark,
            program,
            job,
            TIMEOUT,
            {**nic, **system.conf},
            has_plugin=is_ours,
            environment=system.environment,
        )
    for result in results:
        yield Row(
            suite="peers",
            case="training",
            algorithm=system.algorithm,
            topology=topology.text,
            rate_mbit=options.rate,
            world=topology.world,
            bytes=result["bytes"],
            samples=result["samples"],
            theory_seconds=allreduce_seconds(len(topology.hosts), result["bytes"], options.rate),
            verified=result["verified"],
            versions=versions() | system.installed,
        )


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument(
        "--topology", type=topology_of, default="star:9", help="with one NIC per host: star:N, hosts:MxS, fattree:k"
    )
    parser.add_argument("--rate", type=link_rate, default=200.0, help="Mbit/s of each link, each way")
    parser.add_argument(
        "--sizes", dest="bytes", type=sizes, default="1,16", help="about the bytes of the parameters: 16 (MiB), 64KiB"
    )
    parser.add_argument("--peers", type=names_of(PEERS), default=",".join(PEERS))
    parser.add_argument("--steps", type=positive, default=10, help="iterations of a run")
    options = parser.parse_args(words)
    if options.quick:
        options.bytes, options.steps = sizes("256KiB"), 3
    options.topology = options.topology.with_rates(round(options.rate * 1e6))
    if options.topology.rails > 1 or len(options.topology.hosts) < 2:
        parser.error(f"--topology {options.topology.text}: peers need one NIC per host and at least two hosts")
    return options


# --- The application --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Job of an application.

    :param system: torch-ddp, sparkdl, or bigdl.
    :param models: hidden units of the perceptrons to train, one after the other.
    :param rows: rows of a rank in a step.
    :param steps: iterations of a run. `warmup` runs precede `repeats` timed runs.
    :param timeout: seconds for all.
    """

    system: str
    models: Sequence[int]
    rows: int
    steps: int
    warmup: int
    repeats: int
    ranks: int
    timeout: float

    @property
    def iterations(self) -> int:
        """Iterations of all runs of a model."""
        return self.steps * (self.warmup + self.repeats)

    @property
    def total_bytes(self) -> int:
        """Bytes of the parameters of all models."""
        return sum(map(nbytes, self.models))


def fits(spark: SparkSession, job: Job, hidden: int) -> dict[str, object]:
    """Fit a model by TorchEstimator, with the strategy of the session's conf.

    A run is a fit of `steps` iterations, each over all rows. Its time per iteration is the fit's report.
    """
    count = job.rows * job.ranks
    inputs, targets = workload.rows(count)
    data = spark.createDataFrame(
        pd.DataFrame({"features": list(inputs), "label": targets}), "features array<float>, label float"
    )
    estimator = TorchEstimator(
        model=functools.partial(perceptron, hidden),
        loss=loss,
        optimizer=functools.partial(torch.optim.SGD, lr=LEARNING_RATE),
        batchSize=count,
        maxIter=job.steps,
        num_workers=job.ranks,
    )
    samples, verified = [], True
    for run in range(job.warmup + job.repeats):
        model = estimator.fit(data)
        if model.summary is None or model.summary["iterations"] != job.steps:
            raise InputError(f"a fit must have {job.steps} iterations, and its summary is {model.summary}")
        if run >= job.warmup:
            samples.append(model.summary["seconds_per_iteration"])
            verified &= right(model.module, hidden, count, job.steps)
    return {"bytes": nbytes(hidden), "samples": samples, "verified": verified}


def train_with_ddp(job: Job) -> list[dict[str, Any]]:
    """Train on one rank by DDP under TorchDistributor. The driver gets the results of rank 0."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=job.timeout))
    results = []
    for hidden in job.models:
        counts = {"steps": job.steps, "warmup": job.warmup, "repeats": job.repeats}
        samples, verified = trained_by_ddp(perceptron(hidden), hidden, job.rows, **counts)
        results.append({"bytes": nbytes(hidden), "samples": samples, "verified": verified})
    dist.destroy_process_group()
    return results


def results(spark: SparkSession, job: Job) -> list[dict[str, Any]]:
    if job.system == "sparkdl":
        return [fits(spark, job, hidden) for hidden in job.models]
    found: list[dict[str, Any]] = TorchDistributor(job.ranks, local_mode=False, use_gpu=False).run(train_with_ddp, job)
    return found


if __name__ == "__main__":
    answer("peers", Job, results)
