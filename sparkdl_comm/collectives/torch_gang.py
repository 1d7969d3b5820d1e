"""Gang of the ranks of torch.distributed's default group, for functions that CommDistributor did not start.

TorchDistributor and torchrun give a function ranks and torch's store, but no Spark. Here rank 0 creates a secret and
puts it into the store. The ranks exchange their addresses through the store and authenticate their connections with the
secret. torch's store does not authenticate its clients, so a stranger who can read it can join. torch's own connections
are no safer.
"""

from __future__ import annotations

import atexit
import datetime
import os
import socket
from collections.abc import Mapping

import torch
import torch.distributed as dist

from sparkdl_comm.collectives.communicator import Communicator
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import DeadlineError, GangError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.handshake import SECRET_BYTES

_communicators: dict[dist.ProcessGroup, Communicator] = {}


def communicator(settings: Mapping[str, str] | None, device: torch.device) -> Communicator:
    """Return this rank's Communicator for the default group. The first call creates it, so all ranks must make it.

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
