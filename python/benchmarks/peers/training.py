"""Peers that train, as Spark applications: torch DistributedDataParallel, BigDL, and this package.

All train the same model on the same rows (see workload.py). Each is an application on the same Spark cluster.
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

#: Names of strategies and engines: in the table, and in their system.
STRATEGIES = {"sparkdl-ps": "ps", "sparkdl-gloo": "gloo"}
ENGINES = {"bigdl-mkl": "mklblas", "bigdl-mkldnn": "mkldnn"}


def torch_ddp(arena: Arena) -> Iterator[Row]:
    need_pyspark()
    conf = {"spark.executorEnv.GLOO_SOCKET_IFNAME": arena.lab.layout.node(0).interface(0)}
    yield from train(arena, "torch-ddp", "ddp_job.py", conf, versions("torch", "pyspark"))


def bigdl(arena: Arena) -> Iterator[Row]:
    need_pyspark()
    folder = arena.options.bigdl.resolve()
    jars = sorted(map(str, folder.glob("bigdl/share/*/lib/*.jar")))
    there = {found.name: found.version for found in metadata.distributions(path=[str(folder)])}
    found = {name: version for name, version in there.items() if name.startswith("bigdl")}
    if not {"bigdl-dllib-spark3", "bigdl-core"} <= found.keys() or not jars:
        raise NotInstalledError(f"no BigDL in {folder}: `make bigdl` installs it")
    # The jars are on the class path and not shipped, as every host is this machine.
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
    """Submit a program of this folder with the common job. Yield its rows.

    :param environment: variables of the driver, added to the cluster's.
    :raises LabError: the application failed. The text has the end of the driver's output.
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
    # In each iteration every host needs all bytes: gradients of the others, or updated parameters.
    with arena.crossing(job.iterations * job.total_bytes):
        applications.run(arena.spark, PROGRAMS / program, [job.to_json()], options.timeout, conf, environment)
    yield from arena.rows(algorithm, Path(output).read_text(), installed)
