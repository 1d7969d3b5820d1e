"""Peers on an emulated network, against what its links allow: gloo, Open MPI, torch DDP, BigDL; and this package.

    python python/benchmarks peers --topology star:9 --rate 200 --json

One rank per host, or as many as `hosts:MxS` says. All peers run on the same emulated network, one after the other. That
their data crossed its links is checked with the links' own counters. A link lets a burst of some 80 KiB pass at once, so
buffers that are not much larger can be faster than theory.

The cases `allreduce`, `broadcast` and `reduce` are one operation on a buffer. Theory: 2 (N-1)/N x bytes / rate for an
all-reduce between N hosts, bytes / rate for the others. A repeat is timed from a barrier to the end of the slowest rank, and
its result is checked on every rank.

The case `training` is an iteration of synchronous SGD, in a Spark application on a Spark standalone cluster on that network:
forward and backward pass of a perceptron with so many bytes of float32 parameters, for a few rows per rank, really computed
(with `--profile`: of a real network's layers, which wait as long as they would compute); what the peer does to share
gradients and parameters; and the update. The time is that of a run of `--steps` iterations, divided by them. Theory is that
of an all-reduce of the parameters' bytes: computing counts as nothing. The weights after the last step are compared with
those that one process finds.

Peers, each skipped with one line if it is not installed, or if networks cannot be emulated here:

gloo         torch.distributed: the operations
openmpi      as it chooses itself, and with its ring for the all-reduce, over TCP
openmpi-shm  Open MPI in shared memory, without a network: what this machine does itself
torch-ddp    training: DistributedDataParallel over gloo, under pyspark's TorchDistributor
bigdl        training: BigDL's DistriOptimizer, float32 on the wire, with its engines MKL and mkldnn; `make bigdl` installs it
sparkdl      training: this package's TorchEstimator, strategies ps and gloo
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.command import Note
from benchmarks.peers import collectives, training
from benchmarks.peers.arena import Arena, NotInstalledError
from benchmarks.workload import hidden_of
from lab.arguments import link_rate, names_of, positive, sizes, topology_of
from lab.bench import Row

from sparkdl_comm.errors import LabError, LabUnavailableError, SparkdlCommError
from sparkdl_comm.sim.profile import shipped

BIGDL = Path(__file__).parents[3] / "build" / "bigdl"

#: In this order: those that need Spark come last, so that its daemons do not run beside the others.
PEERS: dict[str, Callable[[Arena], Iterator[Row]]] = {**collectives.PEERS, **training.PEERS}


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Rows of all peers; what is skipped or failed is noted, and the others go on.

    :raises LabUnavailableError: all were skipped. LabError: some failed.
    """
    failed, measured = [], False
    with tempfile.TemporaryDirectory(prefix="sparkdl-peers-") as folder, Arena(options, Path(folder)) as arena:
        for peer in filter(options.peers.__contains__, PEERS):
            try:
                for row in PEERS[peer](arena):
                    measured = True
                    yield row
            except (NotInstalledError, LabUnavailableError) as reason:
                note(f"{peer} skipped: {reason}")
            except SparkdlCommError as error:
                note(f"{peer} failed: {error}")
                failed.append(peer)
    if failed:
        raise LabError(", ".join(failed))
    if not measured:
        raise LabUnavailableError("all peers")


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument(
        "--topology", type=topology_of, default="star:9", help="with one NIC per host: star:N, hosts:MxS, fattree:k"
    )
    parser.add_argument("--rate", type=link_rate, default=200.0, help="Mbit/s of each link, each way")
    parser.add_argument(
        "--sizes",
        dest="bytes",
        type=sizes,
        default="1,16",
        help="of the buffer, or about that of the parameters: 16 (MiB), 64KiB",
    )
    parser.add_argument("--peers", type=names_of(PEERS), default=",".join(PEERS))
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for all runs of a program")
    parser.add_argument("--calls", type=positive, default=1, help="of a collective, one after another, in each repeat")
    parser.add_argument(
        "--operations",
        type=names_of(collectives.OPERATIONS),
        default="all_reduce,broadcast",
        help=f"of {', '.join(collectives.OPERATIONS)}",
    )
    group = parser.add_argument_group("training")
    group.add_argument("--steps", type=positive, default=10, help="iterations of a run")
    group.add_argument("--profile", choices=shipped(), help="train this network, with emulated computing, instead")
    group.add_argument("--rows", type=positive, default=4, help="of a rank in a step")
    group.add_argument("--memory", default="1g", help="of each executor")
    group.add_argument("--bigdl", type=Path, default=BIGDL, help="where BigDL is")
    options = parser.parse_args(words)
    if options.quick:
        options.bytes, options.repeats, options.steps = sizes("256KiB"), 1, 3
    options.topology = options.topology.with_rates(round(options.rate * 1e6))
    options.models = [options.profile] if options.profile else [hidden_of(size) for size in options.bytes]
    if options.topology.rails > 1 or len(options.topology.hosts) < 2:
        parser.error(f"{options.topology.text}: the peers know one NIC per host, and need two hosts")
    if max(options.bytes) >= 2**31:
        parser.error(f"--sizes: {max(options.bytes)} bytes must be less than 2048 MiB")
    return options
