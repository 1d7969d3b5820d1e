"""Peers for single collective operations: gloo and Open MPI."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.peers.arena import PROGRAMS, Arena, NotInstalledError
from lab import Cluster, Lab
from lab.bench import Row, versions
from lab.layout import CONTROL

OPERATIONS = ("all_reduce", "broadcast", "reduce")
RING = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "4"]


def gloo(arena: Arena) -> Iterator[Row]:
    lab, options = arena.lab, arena.options
    counts = [options.warmup, options.repeats, options.calls, options.timeout, *options.bytes]
    asked = ",".join(options.operations)
    with arena.crossing(necessary(arena, arena.options.operations)):
        results = lab.run(
            [
                sys.executable,
                str(PROGRAMS / "gloo_rank.py"),
                str(arena.folder / "rendezvous"),
                asked,
                *map(str, counts),
            ],
            timeout=options.timeout,
            env={"GLOO_SOCKET_IFNAME": lab.layout.node(0).interface(0)},
        )
    yield from arena.rows("gloo", results[0].stdout, versions("torch"))


def gloo_loopback(arena: Arena) -> Iterator[Row]:
    options = arena.options
    counts = [options.warmup, options.repeats, options.calls, options.timeout, *options.bytes]
    asked = ",".join(options.operations)
    with Lab.loopback(options.topology) as cluster:
        results = cluster.run(
            [sys.executable, str(PROGRAMS / "gloo_rank.py"), str(arena.folder / "meeting"), asked, *map(str, counts)],
            timeout=options.timeout,
            env={"GLOO_SOCKET_IFNAME": "lo"},
        )
    yield from arena.rows("gloo-loopback", results[0].stdout, versions("torch"), linked=False)


def openmpi(arena: Arena) -> Iterator[Row]:
    program, installed = openmpi_program(arena.folder)
    lab = arena.lab
    nodes = {lab.address(host.index, CONTROL): lab.layout.node(host.index) for host in lab.topology.hosts}
    agent = arena.folder / "agent"
    agent.write_text(launch_agent({address: node.namespace for address, node in nodes.items()}))
    agent.chmod(0o700)
    # Open MPI's control messages use the control network, and data the lab's links.
    control, rail = lab.layout.node(0).interface(CONTROL), lab.layout.node(0).interface(0)
    network = ["--host", ",".join(f"{address}:{lab.topology.ranks_per_host}" for address in nodes)]
    network += ["--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", control]
    network += ["--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", rail]
    with arena.crossing(necessary(arena, arena.options.operations)):
        chosen = mpirun(arena, lab, network, program)
    yield from arena.rows("openmpi", chosen, installed)
    if "all_reduce" in arena.options.operations:  # the other operations have no ring
        with arena.crossing(necessary(arena, ["all_reduce"])):
            ring = mpirun(arena, lab, [*network, *RING], program, ["all_reduce"])
        yield from arena.rows("openmpi-ring", ring, installed)


def openmpi_shm(arena: Arena) -> Iterator[Row]:
    program, installed = openmpi_program(arena.folder)
    with Lab.loopback(arena.options.topology) as cluster:
        output = mpirun(arena, cluster, ["--mca", "btl", "self,vader"], program)
    yield from arena.rows("openmpi-shm", output, installed, linked=False)


PEERS = {"gloo": gloo, "gloo-loopback": gloo_loopback, "openmpi": openmpi, "openmpi-shm": openmpi_shm}


def necessary(arena: Arena, operations: Sequence[str]) -> int:
    """Return the bytes that each host must receive. In a reduce some hosts only send, so it counts as nothing."""
    options = arena.options
    receiving = sum(operation != "reduce" for operation in operations)
    return receiving * (options.warmup + options.repeats) * options.calls * sum(options.bytes)


# --- Open MPI -------------------------------------------------------------------------------------------------------


def openmpi_program(folder: Path) -> tuple[str, dict[str, str]]:
    """Compile the rank program. Return its path and the versions to report.

    :raises NotInstalledError: Open MPI is not installed, or does not compile.
    """
    if not (shutil.which("mpirun") and shutil.which("mpicc")):
        raise NotInstalledError("no mpirun and mpicc: install Open MPI (Debian: openmpi-bin, libopenmpi-dev)")
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"Open MPI\) (\S+)", said)
    if found is None:
        raise NotInstalledError(f"mpirun is not Open MPI's: it says {said[:60]!r}")
    program = str(folder / "openmpi_rank")
    command = ["mpicc", "-O2", str(PROGRAMS / "openmpi_rank.c"), "-o", program]
    compiled = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if compiled.returncode:
        raise NotInstalledError(f"mpicc does not compile (Debian: libopenmpi-dev): {compiled.stderr[-500:].strip()}")
    return program, versions() | {"openmpi": found[1]}


def launch_agent(namespaces: Mapping[str, str]) -> str:
    """Return a shell script for mpirun: `agent ADDRESS COMMAND…` runs the command in the namespace of that host.

    There the host name is the address, because Open MPI names a host's directories and shared memory after it.
    """
    cases = [f"{address}) namespace={shlex.quote(name)} ;;" for address, name in namespaces.items()]
    refuse = '*) echo "no host has the address $1" >&2; exit 1 ;;'
    run = 'exec ip netns exec "$namespace" unshare --uts sh -c "hostname $address && $*"'
    return "\n".join(["#!/bin/sh", 'case "$1" in', *cases, refuse, "esac", "address=$1; shift", run, ""])


def mpirun(
    arena: Arena, cluster: Cluster, arguments: Sequence[str], program: str, operations: Sequence[str] = ()
) -> str:
    """Run the program on all hosts, launched from host 0. Return its output.

    :param operations: operations to run. Empty: those of the options.
    """
    options = arena.options
    # Ranks yield their core while they wait. There are more ranks than cores, and Open MPI does not see that.
    argv = ["mpirun", "-n", str(cluster.topology.world), "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    argv += [*arguments, program, ",".join(operations or options.operations)]
    argv += map(str, (options.warmup, options.repeats, options.calls, *options.bytes))
    # All processes of a lab run as root, at least in a user namespace. Open MPI refuses that without these variables.
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    [result] = cluster.run_each([(0, argv, environment)], timeout=options.timeout)
    return result.stdout
