"""Peers that train, as Spark applications: torch DistributedDataParallel, BigDL, and this package itself.

All train the same model on the same rows, see workload.py; each is an application of its own on the same Spark cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from benchmarks import applications
from benchmarks.peers.arena import PROGRAMS, Arena, NotInstalledError
from benchmarks.workload import Job
from lab.bench import Row, versions

import sparkdl_comm

#: What a strategy or an engine is called in the table -> how its system calls it.
STRATEGIES = {"sparkdl-ps": "ps", "sparkdl-gloo": "gloo"}
ENGINES = {"bigdl-mkl": "mklblas", "bigdl-mkldnn": "mkldnn"}


def torch_ddp(arena: Arena) -> Iterator[Row]:
    need_pyspark()
    conf = {"spark.executorEnv.GLOO_SOCKET_IFNAME": arena.lab.layout.node(0).interface(0)}
    yield from train(arena, "torch-ddp", "ddp_job.py", conf, versions("torch", "pyspark"))


def bigdl(arena: Arena) -> Iterator[Row]:
    need_pyspark()
    if arena.options.profile:
        raise NotInstalledError("it has no emulated computing, which --profile asks for")
    folder = arena.options.bigdl.resolve()
    jars = sorted(map(str, folder.glob("bigdl/share/*/lib/*.jar")))
    there = {found.name: found.version for found in metadata.distributions(path=[str(folder)])}
    found = {name: version for name, version in there.items() if name.startswith("bigdl")}
    if not {"bigdl-dllib-spark3", "bigdl-core"} <= found.keys() or not jars:
        raise NotInstalledError(f"no BigDL in {folder}: `make bigdl` installs it")
    # On the class path, not shipped: every host is this machine.
    conf = {f"spark.{end}.extraClassPath": ":".join(jars) for end in ("driver", "executor")}
    path = applications.python_path(folder)
    conf["spark.executorEnv.PYTHONPATH"] = path
    for algorithm, engine in ENGINES.items():
        conf |= {f"spark.{end}.extraJavaOptions": f"-Dbigdl.engineType={engine}" for end in ("driver", "executor")}
        yield from train(arena, algorithm, "bigdl_job.py", conf, versions("pyspark") | found, {"PYTHONPATH": path})


def sparkdl(arena: Arena) -> Iterator[Row]:
    need_pyspark()
    for algorithm, strategy in STRATEGIES.items():
        conf = sparkdl_comm.spark_conf(strategy=strategy, progress=False, slot_timeout="2min")
        yield from train(arena, algorithm, "sparkdl_job.py", conf, versions("torch", "pyspark", "sparkdl_comm"))


PEERS = {"torch-ddp": torch_ddp, "bigdl": bigdl, "sparkdl": sparkdl}


def need_pyspark() -> None:
    if find_spec("pyspark") is None:
        raise NotInstalledError("no pyspark: install the extra sparkdl_comm[spark]")


def train(
    arena: Arena,
    algorithm: str,
    program: str,
    conf: Mapping[str, str],
    installed: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
) -> Iterator[Row]:
    """Submits a program of this folder with the job that all peers have.

    :param environment: of the driver, added to the cluster's.
    :raises LabError: the application failed: with what its driver wrote last.
    """
    options, topology = arena.options, arena.options.topology
    output = arena.folder / f"{algorithm}.json"
    job = Job(
        models=options.models,
        rows=options.rows,
        steps=options.steps,
        warmup=options.warmup,
        repeats=options.repeats,
        ranks=topology.world,
        timeout=options.timeout,
        output=str(output),
    )
    # Every host needs the gradients of the others, or the parameters made of them: all bytes, in each iteration.
    with arena.crossing(job.iterations * job.total_bytes):
        applications.run(arena.spark, PROGRAMS / program, [job.to_json()], options.timeout, conf, environment)
    yield from arena.rows(algorithm, Path(output).read_text(), installed)
