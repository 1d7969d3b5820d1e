"""Peers on an emulated network, beside the bound of its links: gloo, Open MPI, torch DDP, BigDL, and this package.

    python python/benchmarks peers --topology star:9 --rate 200 --json

There is one rank per host, or S with `hosts:MxS`. All peers run on the same emulated network, one after the other. The
links' counters prove that their data crossed the links. A link lets a burst of 80 KiB pass at once, so small buffers
can be faster than theory.

The cases `allreduce`, `broadcast` and `reduce` are one operation on a buffer. Theory is 2 (N-1)/N x bytes / rate for an
all-reduce between N hosts, and bytes / rate for the others. A repeat is timed from a barrier to the end of the slowest
rank, and its result is checked on every rank.

The case `training` is an iteration of synchronous SGD, in an application on a Spark standalone cluster on that network.
A perceptron of the given bytes of float32 parameters has a few rows per rank. An iteration is the forward and backward
pass, the peer's exchange of gradients and parameters, and the update. Its time is a run's, divided by `--steps`. Theory
is an all-reduce of the parameters' bytes, without computing. The weights after the last step are compared with those of
one process.

A peer is skipped with one line if it is not installed, or if networks cannot be emulated here:

- `gloo`: operations of torch.distributed.
- `openmpi`: operations over TCP, by Open MPI's own choice of algorithm, and by its ring for the all-reduce.
- `openmpi-shm`: the same in shared memory, without a network.
- `torch-ddp`: training by DistributedDataParallel over gloo, under pyspark's TorchDistributor.
- `bigdl`: training by BigDL's DistriOptimizer, with float32 on the wire, by MKL and mkldnn. `make bigdl` installs it.
- `sparkdl`: training by this package's TorchEstimator, with the strategies ps and gloo.
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

BIGDL = Path(__file__).parents[3] / "build" / "bigdl"

#: Peers in the order of their runs. Spark's daemons must not run beside the first ones.
PEERS: dict[str, Callable[[Arena], Iterator[Row]]] = {**collectives.PEERS, **training.PEERS}


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Yield rows of all peers. Note which are skipped or failed, and go on.

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
        help="bytes of the buffer, and about those of the parameters: 16 (MiB), 64KiB",
    )
    parser.add_argument("--peers", type=names_of(PEERS), default=",".join(PEERS))
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for all runs of a program")
    parser.add_argument("--calls", type=positive, default=1, help="calls of a collective per repeat, one after another")
    parser.add_argument(
        "--operations",
        type=names_of(collectives.OPERATIONS),
        default="all_reduce,broadcast",
        help=f"operations: {', '.join(collectives.OPERATIONS)}",
    )
    group = parser.add_argument_group("training")
    group.add_argument("--steps", type=positive, default=10, help="iterations of a run")
    group.add_argument("--rows", type=positive, default=4, help="rows of a rank in a step")
    group.add_argument("--memory", default="1g", help="memory of each executor")
    group.add_argument("--bigdl", type=Path, default=BIGDL, help="folder of BigDL")
    options = parser.parse_args(words)
    if options.quick:
        options.bytes, options.repeats, options.steps = sizes("256KiB"), 1, 3
    options.topology = options.topology.with_rates(round(options.rate * 1e6))
    options.models = [hidden_of(size) for size in options.bytes]
    if options.topology.rails > 1 or len(options.topology.hosts) < 2:
        parser.error(f"--topology {options.topology.text}: peers need one NIC per host and at least two hosts")
    if max(options.bytes) >= 2**31:
        parser.error(f"--sizes: {max(options.bytes)} bytes. They must be less than 2048 MiB.")
    return options
