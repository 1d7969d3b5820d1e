"""Communication hooks for torch's DistributedDataParallel, in functions that CommDistributor, TorchDistributor or
torchrun runs::

    model = DistributedDataParallel(Net())
    model.register_comm_hook(None, ddp_hooks.bml)

CommDistributor passes on the settings of the Spark session. With the other launchers, give settings that are not
default in the hook's state, such as ``{"spark.sparkdl.comm.rails": "eth1,eth2"}``, equal on all ranks and for all
hooks.

DDP passes the gradients in buckets, the last layers' first, while backward goes on. The algorithm that the hook is
named after all-reduces each bucket. Several buckets are in progress at once.

``exact``, ``mstopk``, ``topk`` and ``dgc`` send only the largest gradients, selected by the operator of the same name.
Their density is that of ``spark.sparkdl.comm.compression``, or 0.01. ``hitopk`` uses the operator and density of that
setting between hosts, or ``exact:0.01``. What is left out is added to the next step's gradients. For PowerSGD, fp16 and
bf16 use torch's own hooks (``torch.distributed.algorithms.ddp_comm_hooks``).
"""

# No `from __future__ import annotations` here: DDP compares a hook's annotations with classes, not with their names.

import atexit
import datetime
import itertools
import os
import socket
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from sparkdl_comm.collectives.communicator import Communicator
from sparkdl_comm.collectives.group import CollectiveGroup, RankGroup
from sparkdl_comm.collectives.work import Work
from sparkdl_comm.compress.feedback import FlatRange
from sparkdl_comm.compress.hitopk import HiTopK
from sparkdl_comm.compress.stages import StageRunner
from sparkdl_comm.compress.sums import CompressedSum, NaiveAllGather, Sparsifier
from sparkdl_comm.conf import DEFAULT_COMPRESSION, PREFIX, CommConf, Compression
from sparkdl_comm.conf.strategy import CHEAPEST
from sparkdl_comm.errors import ConfError, DeadlineError, GangError, InputError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.handshake import SECRET_BYTES

#: Distance between the starts of buckets in a virtual vector of all buckets. A bucket has fewer elements.
_STRIDE = 1 << 40


class DdpSums:
    """Sparse sums of DDP's buckets, for one rank. All of ``ranks`` create one and pass the same buckets in the same
    order.

    DDP makes new buckets after the first step. The residuals of the old buckets are then lost.
    """

    def __init__(
        self, ranks: RankGroup, conf: CommConf, device: torch.device, compression: Compression, is_hierarchical: bool
    ) -> None:
        self._density = compression.density
        self._sparsifier = Sparsifier.of(compression, conf.compression, ranks.rank)
        #: Number of a bucket in the step -> (``parameters_key``, start of the bucket in the virtual vector of all buckets).
        self._bucket_starts: dict[int, tuple[Hashable, int]] = {}
        self._stale_starts: list[int] = []
        self._numbers = itertools.count()
        self._timeout = conf.timeout
        self._group: CollectiveGroup | None = None
        self._sum: CompressedSum
        if is_hierarchical:
            self._sum = HiTopK(self._sparsifier, _whole_range, ranks, conf, device)
        else:
            self._group = CollectiveGroup(ranks.gang, CHEAPEST, conf, device, ranks)
            self._sum = NaiveAllGather(self._sparsifier, _whole_range, self._group, ranks.world)
        self._stages = StageRunner("sparkdl-comm-compression")

    def start(self, index: int, gradients: torch.Tensor, parameters_key: Hashable, is_last: bool) -> Work[None]:
        """Begin to replace ``gradients``, float32 ``[n]``, bucket ``index`` of the step, by their sum over the ranks.

        :param parameters_key: identifies the parameters in the bucket.
        :param is_last: True for the last bucket of the step.
        """
        feedback = self._sparsifier
        if index == 0:  # the previous step is complete, so nothing uses the residuals now
            feedback.settle(True)
            while self._stale_starts:
                start = self._stale_starts.pop()
                feedback.forget(start, start + _STRIDE)
        known_parameters, start = self._bucket_starts.get(index, (None, 0))
        if known_parameters != parameters_key:
            self._stale_starts += [start] * (known_parameters is not None)
            start = next(self._numbers) * _STRIDE
            self._bucket_starts[index] = parameters_key, start
        return self._stages.start(self._sum.stages(start, gradients, self._density, 1.0), is_last)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._sum.close()
        self._stages.close(self._timeout)


def _whole_range(start: int, stop: int) -> FlatRange:
    """Return the range as a part without pieces: DDP does not tell which parameters a step used."""
    return FlatRange(start, stop, ())


__all__ = [
    "be",
    "bml",
    "cheapest",
    "dgc",
    "exact",
    "hierarchical",
    "hitopk",
    "lp",
    "mst",
    "mstopk",
    "p2p_ps",
    "ring",
    "topk",
    "torus2d",
    "tree",
]

_communicators: dict[dist.ProcessGroup, Communicator] = {}


def torch_communicator(settings: Mapping[str, str] | None, device: torch.device) -> Communicator:
    """Return this rank's Communicator for the default group. The first call creates it, so all ranks must make it.

    TorchDistributor and torchrun give a function ranks and torch's store, but no Spark. So rank 0 creates a secret and
    puts it into the store. The ranks exchange their addresses through the store and authenticate their connections with
    the secret. torch's store does not authenticate its clients, so a stranger who can read it can join. torch's own
    connections are no safer.

    :param settings: keys ``spark.sparkdl.comm.…``, since there is no Spark here to read them from.
    :param device: device of the tensors.
    :raises GangError: there is no default group.
    :raises ConfError: an unknown key, an invalid value, or a NIC that this host does not have.
    """
    group = dist.group.WORLD if dist.is_initialized() else None
    if group is None:
        raise GangError(
            "there is no Communicator here: run the function with CommDistributor, or call"
            " torch.distributed.init_process_group"
        )
    if group not in _communicators:
        conf = CommConf.from_mapping(settings or {})
        gang = _join(conf)
        created = _communicators[group] = Communicator(gang, device, conf)
        # The process runs nothing but the function, and ends with it.
        atexit.register(gang.close)
        atexit.register(created.close)
    return _communicators[group]


def _join(conf: CommConf) -> Gang:
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore(f"sparkdl-comm-{len(_communicators)}", dist.distributed_c10d._get_default_store())
    store.set_timeout(datetime.timedelta(seconds=conf.timeout))
    if rank == 0:
        store.set("secret", os.urandom(SECRET_BYTES).hex())
    secret = store.get("secret")

    def exchange(mine: str) -> list[str]:
        store.set(f"member-{rank}", mine)
        try:
            return [store.get(f"member-{other}").decode() for other in range(world)]
        except dist.DistStoreError as exc:
            raise DeadlineError(f"not all of {world} ranks asked for a Communicator within {conf.timeout:g} s") from exc

    return Gang.join(
        rank=rank,
        world=world,
        host=_own_address(),
        exchange=exchange,
        secret=bytes.fromhex(secret.decode()),
        attempt="torch.distributed",
        timeout=conf.timeout,
        nic=conf.nic or None,
        rails=conf.rails,
        ports=range(conf.ports[0], conf.ports[1] + 1) if conf.ports[0] else None,
    )


def _own_address() -> str:
    """Return the address from which this host reaches the host of rank 0."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, kind, proto, _, address = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, proto) as probe:
        probe.connect(address)  # a UDP socket sends nothing here
        return str(probe.getsockname()[0])


Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def all_reduce_hook(algorithm: str) -> Hook:
    """Return the hook that averages gradients by ``algorithm``. :data:`CHEAPEST` selects the cheapest algorithm for each
    bucket.
    """

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        comm = Communicator.current() if Communicator.is_there() else torch_communicator(state, gradients.device)
        return _future_of(comm.collectives(algorithm).start("all_reduce", gradients, "mean"), gradients)

    hook.__name__ = hook.__qualname__ = algorithm
    return hook


def sparse_hook(name: str, operator: str | None = None) -> Hook:
    """Return the hook that averages the largest gradients: each rank's selection by ``operator``, all-gathered.

    If ``operator`` is None, the hook makes hierarchical sums by the settings' operator.
    """

    def make(ranks: RankGroup, conf: CommConf, device: torch.device) -> DdpSums:
        return DdpSums(ranks, conf, device, _compression_of(name, operator, conf), is_hierarchical=operator is None)

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        if gradients.dtype is not torch.float32:
            raise InputError(f"hook {name}: takes gradients of torch.float32, not {gradients.dtype}")
        comm = Communicator.current() if Communicator.is_there() else torch_communicator(state, gradients.device)
        parameters_key = tuple(map(id, bucket.parameters()))
        work = comm.once(name, make).start(bucket.index(), gradients, parameters_key, bucket.is_last())
        return _future_of(work, gradients, comm.world)

    hook.__name__ = hook.__qualname__ = name
    return hook


def _future_of(work: Work[Any], gradients: torch.Tensor, divisor: int = 1) -> torch.futures.Future[torch.Tensor]:
    """Return torch's future of ``work``. Its value is ``gradients``, divided by ``divisor`` in place."""
    devices: Any = [gradients.device] if gradients.is_cuda else None
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)

    def on_end(work: Work[Any]) -> None:
        if work.error is None:
            future.set_result(gradients if divisor == 1 else gradients.div_(divisor))
        else:
            future.set_exception(work.error)  # type: ignore[arg-type]  # what torch's own annotation says is wrong

    work.then(on_end)
    return future


def _compression_of(name: str, operator: str | None, conf: CommConf) -> Compression:
    """Return the operator and density of a hook."""
    compression = conf.compression.method or DEFAULT_COMPRESSION
    if compression.rank:
        raise ConfError(
            f"{PREFIX}compression={compression}, but hook {name} sends the largest gradients. Use torch's own powerSGD_hook."
        )
    if operator is None:
        return compression
    if conf.compression.method is not None and operator != compression.operator:
        raise ConfError(
            f"{PREFIX}compression={compression}, but hook {name} selects by {operator}. Register the hook"
            f" {compression.operator}, or set {operator}:{compression.density:g}."
        )
    return replace(compression, operator=operator)


#: BML: uses all NICs of every host of a BCube at once.
bml = all_reduce_hook("bml")
#: Linear pipeline: gradients travel in blocks along a chain of ranks, and back.
lp = all_reduce_hook("lp")
#: Ring: reduce-scatter, then all-gather, each rank sending to its successor.
ring = all_reduce_hook("ring")
#: Minimum spanning tree: a reduce to rank 0, then a broadcast. Few steps, for small buckets.
mst = all_reduce_hook("mst")
#: Bidirectional exchange: recursive halving, then recursive doubling.
be = all_reduce_hook("be")
#: 2D torus: ranks in rows and columns, a ring in each.
torus2d = all_reduce_hook("torus2d")
#: Hierarchical: first within the groups of a Fat-Tree, or of hosts with several ranks, then between the groups.
hierarchical = all_reduce_hook("hierarchical")
#: Peer-to-peer parameter server: every rank sums one shard, and sends it back.
p2p_ps = all_reduce_hook("p2p-ps")
#: Double binary tree: one half of the gradients travels up and down each of two trees, in blocks. For many ranks.
tree = all_reduce_hook("tree")
#: The cheapest of these for each bucket, by the cost model.
cheapest = all_reduce_hook(CHEAPEST)
#: The largest gradients of each rank, all-gathered.
exact = sparse_hook("exact", "exact")
#: Approximately the largest gradients of each rank, by CommLib's search for two thresholds, all-gathered.
mstopk = sparse_hook("mstopk", "mstopk")
#: The largest gradients by torch.topk, all-gathered.
topk = sparse_hook("topk", "topk")
#: The largest gradients by Deep Gradient Compression's double sampling, all-gathered.
dgc = sparse_hook("dgc", "dgc")
#: Hierarchical top-k, for hosts with several ranks: dense sums within a host, then the largest of them, all-gathered.
hitopk = sparse_hook("hitopk")
