"""All-reduce and broadcast of gloo and Open MPI on an emulated network, against what its links allow.

    python python/bench_peers.py --topology star:9 --rate 200 --json

One rank per host, or as many as `hosts:MxS` says. Theory: 2 (N-1)/N x bytes / rate for an all-reduce between N hosts, bytes
/ rate for a broadcast. A repeat is timed from a barrier to the end of the slowest rank, and its result is checked on every
rank. That the data crossed the emulated links is checked with the links' own counters. A link lets a burst of some 80 KiB
pass at once, so buffers that are not much larger can be faster than theory.

Peers, each skipped with one line if it is not installed, or if networks cannot be emulated here:

gloo         torch.distributed
openmpi      as it chooses itself, and with its ring for the all-reduce, over TCP
openmpi-shm  Open MPI in shared memory, without a network: what this machine does itself
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl_comm.errors import ConfError, LabError, LabUnavailableError, SparkdlCommError
from sparkdl_comm.lab import Cluster, Lab
from sparkdl_comm.lab.bench import Report, Row, allreduce_seconds, broadcast_seconds, versions
from sparkdl_comm.lab.bench import parser as bench_parser
from sparkdl_comm.lab.layout import CONTROL
from sparkdl_comm.topology import Topology

RANK_PROGRAMS = Path(__file__).parent / "peers"
RING = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "4"]


class NotInstalledError(Exception):
    """A peer is not installed; the message says what to install."""


# --- the peers ------------------------------------------------------------------------------------------------------


def gloo(options: Namespace, folder: Path) -> Iterator[Row]:
    with Lab(options.topology) as lab, on_links(lab, options):
        counts = [options.warmup, options.repeats, options.timeout, *options.bytes]
        results = lab.run(
            [sys.executable, str(RANK_PROGRAMS / "gloo_rank.py"), str(folder / "rendezvous"), *map(str, counts)],
            timeout=options.timeout,
            env={"GLOO_SOCKET_IFNAME": lab.layout.node(0).interface(0)},
        )
    yield from rows("gloo", results[0].stdout, versions("torch"), options)


def openmpi(options: Namespace, folder: Path) -> Iterator[Row]:
    program, installed = openmpi_program(folder)
    with Lab(options.topology) as lab:
        nodes = {lab.address(host.index, CONTROL): lab.layout.node(host.index) for host in lab.topology.hosts}
        agent = folder / "agent"
        agent.write_text(launch_agent({address: node.namespace for address, node in nodes.items()}))
        agent.chmod(0o700)
        # Open MPI's own messages go over the control network, the data over the lab's links.
        control, rail = lab.layout.node(0).interface(CONTROL), lab.layout.node(0).interface(0)
        network = ["--host", ",".join(f"{address}:{lab.topology.slots}" for address in nodes)]
        network += ["--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", control]
        network += ["--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", rail]
        with on_links(lab, options):
            chosen = mpirun(lab, network, program, options)
        yield from rows("openmpi", chosen, installed, options)
        with on_links(lab, options):
            ring = mpirun(lab, [*network, *RING], program, options)
        # The ring is one of the all-reduce; the broadcast is the same as before.
        yield from (row for row in rows("openmpi-ring", ring, installed, options) if row.case == "allreduce")


def openmpi_shm(options: Namespace, folder: Path) -> Iterator[Row]:
    program, installed = openmpi_program(folder)
    with Lab.loopback(options.topology) as cluster:
        output = mpirun(cluster, ["--mca", "btl", "self,vader"], program, options)
    yield from rows("openmpi-shm", output, installed, options, linked=False)


PEERS: dict[str, Callable[[Namespace, Path], Iterator[Row]]] = {
    "gloo": gloo,
    "openmpi": openmpi,
    "openmpi-shm": openmpi_shm,
}


# --- Open MPI -------------------------------------------------------------------------------------------------------


def openmpi_program(folder: Path) -> tuple[str, dict[str, str]]:
    """The compiled rank program, and the versions to report. NotInstalledError if Open MPI is not there."""
    if not (shutil.which("mpirun") and shutil.which("mpicc")):
        raise NotInstalledError("no mpirun and mpicc: install Open MPI (Debian: openmpi-bin, libopenmpi-dev)")
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"Open MPI\) (\S+)", said)
    if found is None:
        raise NotInstalledError(f"mpirun is not Open MPI's: it says {said[:60]!r}")
    program = str(folder / "openmpi_rank")
    command = ["mpicc", "-O2", str(RANK_PROGRAMS / "openmpi_rank.c"), "-o", program]
    compiled = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if compiled.returncode:
        raise NotInstalledError(f"mpicc does not compile (Debian: libopenmpi-dev): {compiled.stderr[-500:].strip()}")
    return program, versions() | {"openmpi": found[1]}


def launch_agent(namespaces: Mapping[str, str]) -> str:
    """A shell script for mpirun: `agent ADDRESS COMMAND…` runs the command in the namespace of that host.

    There the machine's name is the address: Open MPI names the directories and shared memory of a host after it.
    """
    cases = [f"{address}) namespace={shlex.quote(name)} ;;" for address, name in namespaces.items()]
    refuse = '*) echo "no host has the address $1" >&2; exit 1 ;;'
    run = 'exec ip netns exec "$namespace" unshare --uts sh -c "hostname $address && $*"'
    return "\n".join(["#!/bin/sh", 'case "$1" in', *cases, refuse, "esac", "address=$1; shift", run, ""])


def mpirun(cluster: Cluster, arguments: Sequence[str], program: str, options: Namespace) -> str:
    """Runs the program on all hosts, launched from host 0; what it printed."""
    # Ranks yield their core while they wait: there are more of them than cores, which Open MPI does not see.
    argv = ["mpirun", "-n", str(cluster.topology.world), "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    argv += [*arguments, program, *map(str, (options.warmup, options.repeats, *options.bytes))]
    # Inside a lab all run as root, be it only in a user namespace; Open MPI wants to be told that this is meant.
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    [result] = cluster.run_each([(0, argv, environment)], timeout=options.timeout)
    return result.stdout


# --- results --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def on_links(lab: Lab, options: Namespace) -> Iterator[None]:
    """Checks that what the body ran went over the lab's links, not past them.

    Whatever the algorithm, every host but the root must receive all bytes in each run of each operation.

    :raises LabError: a host received less.
    """
    before = lab.counters()
    yield
    after = lab.counters()
    necessary = 2 * (options.warmup + options.repeats) * sum(options.bytes)
    for host in lab.topology.hosts[1:]:
        received = after[host.index, 0].received - before[host.index, 0].received
        if received < necessary:
            raise LabError(f"host {host.index} received {received:,} bytes over its link, and needs {necessary:,}")


def rows(
    algorithm: str, output: str, installed: Mapping[str, str], options: Namespace, *, linked: bool = True
) -> Iterator[Row]:
    """A row for each JSON line that rank 0 printed. `linked`: the ranks used the topology's links."""
    hosts, world = len(options.topology.hosts), options.topology.world
    for line in filter(None, output.splitlines()):
        result: dict[str, Any] = json.loads(line)
        nbytes = result["bytes"]
        if result["case"] == "allreduce":
            theory = allreduce_seconds(hosts, nbytes, options.rate)
        else:
            theory = broadcast_seconds(nbytes, options.rate)
        yield Row(
            suite="peers",
            case=result["case"],
            algorithm=algorithm,
            topology=options.topology.text if linked else "loopback",
            rate_mbit=options.rate if linked else None,
            world=world,
            bytes=nbytes,
            samples=result["samples"],
            theory_seconds=theory if linked else None,
            verified=result["verified"],
            versions=installed,
        )


def arguments() -> Namespace:
    parser = bench_parser(__doc__)
    parser.add_argument("--topology", default="star:9", help="with one NIC per host: star:N, hosts:MxS, fattree:k")
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s of each link, each way")
    parser.add_argument("--sizes", default="1,16", help="of the buffer, MiB")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for all of one peer's runs")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.repeats = "0.25", 1
    try:
        options.topology = Topology.parse(options.topology).with_rates(round(options.rate * 1e6))
        options.bytes = [int(float(size) * 2**18) * 4 for size in options.sizes.split(",")]
    except (ConfError, ValueError, OverflowError) as error:
        parser.error(str(error))
    options.peers = options.peers.split(",")
    if unknown := set(options.peers) - PEERS.keys():
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    if options.topology.rails > 1 or len(options.topology.hosts) < 2:
        parser.error(f"{options.topology.text}: the peers know one NIC per host, and need two hosts")
    if not all(0 < size < 2**31 for size in options.bytes):
        parser.error(f"--sizes {options.sizes}: must be more than 0 and less than 2048 MiB")
    return options


def main() -> int:
    options = arguments()
    report = Report(as_json=options.json)
    failed = False
    for peer in options.peers:
        try:
            with tempfile.TemporaryDirectory(prefix="sparkdl-peers-") as folder:
                for row in PEERS[peer](options, Path(folder)):
                    report.add(row)
        except (NotInstalledError, LabUnavailableError) as reason:
            report.note(f"{peer} skipped: {reason}")
        except SparkdlCommError as error:
            report.note(f"{peer} failed: {error}")
            failed = True
    if not report.rows and not failed:
        return 0  # all were skipped, and said why
    return max(report.finish(), int(failed))


if __name__ == "__main__":
    sys.exit(main())
