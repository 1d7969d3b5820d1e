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
- `sparkdl`: this package's TorchEstimator, with the strategies ps and gloo.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from benchmarks.applications import BIGDL, crossing, python_path, submit
from benchmarks.command import Note
from benchmarks.workload import Job, hidden_of
from lab import Lab
from lab.arguments import link_rate, names_of, positive, sizes, topology_of
from lab.bench import Row, allreduce_seconds, versions
from lab.spark import SparkCluster

from sparkdl_comm.conf import PREFIX
from sparkdl_comm.errors import LabError, LabUnavailableError, SparkdlCommError

#: Rows of a rank in a step, memory of an executor, and seconds for all runs of a system.
ROWS, MEMORY, TIMEOUT = 4, "1g", 600.0


class System(NamedTuple):
    """System that trains: its application, a program of this folder.

    :param installed: versions of BigDL's packages.
    :param conf: settings of Spark.
    :param environment: variables of the driver.
    """

    algorithm: str
    program: str
    conf: Mapping[str, str] = {}
    installed: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}


def torch_ddp() -> Iterator[System]:
    yield System("torch-ddp", "ddp_job.py")


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
        yield System(algorithm, "bigdl_job.py", dict(conf), found, {"PYTHONPATH": path})


def sparkdl() -> Iterator[System]:
    for strategy in ("ps", "gloo"):
        yield System(f"sparkdl-{strategy}", "sparkdl_job.py", {f"{PREFIX}strategy": strategy})


PEERS: dict[str, Callable[[], Iterator[System]]] = {"torch-ddp": torch_ddp, "bigdl": bigdl, "sparkdl": sparkdl}


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Yield rows of all systems. Note which are skipped or failed, and go on.

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
    """Let a system train. Yield its rows.

    :raises LabError: the application failed, or its data did not cross the links.
    """
    topology = options.topology
    counts = options.steps, options.warmup, options.repeats
    job = Job([hidden_of(size) for size in options.bytes], ROWS, *counts, topology.world, TIMEOUT)
    is_ours = system.program == "sparkdl_job.py"
    nic = {} if is_ours else {"spark.executorEnv.GLOO_SOCKET_IFNAME": lab.layout.node(0).interface(0)}
    program = Path(__file__).with_name(system.program)
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
