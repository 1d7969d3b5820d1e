"""Peers of collectives on one NIC per host: gloo and Open MPI, on links or on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.applications import crossing
from benchmarks.collectives.rank import GLOO, Job
from benchmarks.ranks import run_ranks
from lab import Cluster, Lab
from lab.layout import CONTROL

from sparkdl_comm.errors import LabUnavailableError
from sparkdl_comm.topology import Topology

OPERATIONS = ("all_reduce", "broadcast", "reduce")
RANK_PROGRAM = Path(__file__).with_name("rank.py")
#: Seconds for all runs of an algorithm.
TIMEOUT = 300.0
RING = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "4"]


class Measured(NamedTuple):
    """Results of an algorithm, as rank programs print them, and the version of Open MPI."""

    algorithm: str
    results: list[dict[str, Any]]
    is_linked: bool = True
    installed: Mapping[str, str] = {}


def job_of(options: Namespace, algorithm: str, operations: Sequence[str], block: int = 0) -> Job:
    """Return the job of ranks that run these operations."""
    counts = options.warmup, options.repeats, options.calls
    return Job(algorithm, operations, options.bytes, *counts, TIMEOUT, block)


def gloo(star: Topology, options: Namespace) -> Iterator[Measured]:
    with Lab(star) as lab, crossing(lab, necessary(options, options.operations)):
        results = run_ranks(lab, RANK_PROGRAM, job_of(options, GLOO, options.operations), TIMEOUT)
    yield Measured("gloo", results)


def gloo_loopback(star: Topology, options: Namespace) -> Iterator[Measured]:
    with Lab.loopback(star) as cluster:
        results = run_ranks(cluster, RANK_PROGRAM, job_of(options, GLOO, options.operations), TIMEOUT)
    yield Measured("gloo-loopback", results, is_linked=False)


def openmpi(star: Topology, options: Namespace) -> Iterator[Measured]:
    with openmpi_program() as (program, installed), Lab(star) as lab:
        nodes = {lab.address(host.index, CONTROL): lab.layout.node(host.index) for host in star.hosts}
        agent = program.with_name("agent")
        agent.write_text(launch_agent({address: node.namespace for address, node in nodes.items()}))
        agent.chmod(0o700)
        # Open MPI's control messages use the control network, and data the lab's links.
        control, rail = lab.layout.node(0).interface(CONTROL), lab.layout.node(0).interface(0)
        network = ["--host", ",".join(f"{address}:{star.ranks_per_host}" for address in nodes)]
        network += ["--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", control]
        network += ["--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", rail]
        with crossing(lab, necessary(options, options.operations)):
            chosen = mpirun(lab, network, program, options.operations, options)
        yield Measured("openmpi", chosen, installed=installed)
        if "all_reduce" in options.operations:  # the other operations have no ring
            with crossing(lab, necessary(options, ["all_reduce"])):
                ring = mpirun(lab, [*network, *RING], program, ["all_reduce"], options)
            yield Measured("openmpi-ring", ring, installed=installed)


def openmpi_shm(star: Topology, options: Namespace) -> Iterator[Measured]:
    with openmpi_program() as (program, installed), Lab.loopback(star) as cluster:
        found = mpirun(cluster, ["--mca", "btl", "self,vader"], program, options.operations, options)
    yield Measured("openmpi-shm", found, is_linked=False, installed=installed)


PEERS = {"gloo": gloo, "gloo-loopback": gloo_loopback, "openmpi": openmpi, "openmpi-shm": openmpi_shm}


def necessary(options: Namespace, operations: Sequence[str]) -> int:
    """Return the bytes that each host must receive. In a reduce some hosts only send, so it counts as nothing."""
    receiving = sum(operation != "reduce" for operation in operations)
    return receiving * (options.warmup + options.repeats) * options.calls * sum(options.bytes)


# --- Open MPI -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def openmpi_program() -> Iterator[tuple[Path, dict[str, str]]]:
    """Compile the rank program. Give its path in a new folder and the version of Open MPI.

    :raises LabUnavailableError: Open MPI is not installed, or does not compile.
    """
    if not (shutil.which("mpirun") and shutil.which("mpicc")):
        raise LabUnavailableError("no mpirun and mpicc: install Open MPI (Debian: openmpi-bin, libopenmpi-dev)")
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"Open MPI\) (\S+)", said)
    if found is None:
        raise LabUnavailableError(f"mpirun is not Open MPI's: it says {said[:60]!r}")
    with tempfile.TemporaryDirectory(prefix="sparkdl-openmpi-") as folder:
        program = Path(folder, "openmpi_rank")
        command = ["mpicc", "-O2", str(Path(__file__).with_name("openmpi_rank.c")), "-o", str(program)]
        compiled = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if compiled.returncode:
            error = compiled.stderr[-500:].strip()
            raise LabUnavailableError(f"mpicc does not compile (Debian: libopenmpi-dev): {error}")
        yield program, {"openmpi": found[1]}


def launch_agent(namespaces: Mapping[str, str]) -> str:
    """Return a shell script for mpirun: `agent ADDRESS COMMAND…` runs the command in the namespace of that host.

    There the host name is the address, because Open MPI names a host's directories and shared memory after it.
    """
    cases = [f"{address}) namespace={shlex.quote(name)} ;;" for address, name in namespaces.items()]
    refuse = '*) echo "no host has the address $1" >&2; exit 1 ;;'
    run = 'exec ip netns exec "$namespace" unshare --uts sh -c "hostname $address && $*"'
    return "\n".join(["#!/bin/sh", 'case "$1" in', *cases, refuse, "esac", "address=$1; shift", run, ""])


def mpirun(
    cluster: Cluster, arguments: Sequence[str], program: Path, operations: Sequence[str], options: Namespace
) -> list[dict[str, Any]]:
    """Run the program on all hosts, launched from host 0. Return its results."""
    # Ranks yield their core while they wait. There are more ranks than cores, and Open MPI does not see that.
    argv = ["mpirun", "-n", str(cluster.topology.world), "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    argv += [*arguments, str(program), ",".join(operations)]
    argv += map(str, (options.warmup, options.repeats, options.calls, *options.bytes))
    # All processes of a lab run as root, at least in a user namespace. Open MPI refuses that without these variables.
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    [result] = cluster.run_each([(0, argv, environment)], timeout=TIMEOUT)
    return [json.loads(line) for line in result.stdout.splitlines() if line]
