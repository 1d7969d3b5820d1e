"""Endpoints and identity of a daemon's process: what it needs to reach the others, and to be reached."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sparkdl_comm.fabric.control_link import ControlLink
from sparkdl_comm.fabric.protocol import CONTROL_SERVICE, DATA_SERVICE, RailAddresses
from sparkdl_comm.gang.credentials import Credentials
from sparkdl_comm.gang.handshake import Address

if TYPE_CHECKING:  # an aggregator's process does not import torch
    from sparkdl_comm.gang.gang import Gang


class ServiceRegistrar(Protocol):
    """Function that registers ``handler(sock, rank)`` for peers that connect for ``kind``; see ``Gang.serve``.

    The handler is called in a thread of its own for each peer.
    """

    def __call__(self, kind: str, handler: Callable[[socket.socket, int], None]) -> None: ...


@dataclass(frozen=True)
class Endpoints:
    """Addresses and identity of a daemon.

    - ``scheduler``: address of rank 0 on the control NIC.
    - ``control_ip``: address of this host's control NIC, if one was chosen.
    - ``host``: name of this host.
    - ``rails``: addresses at which data arrive.
    - ``timeout``: seconds to wait for a peer.
    """

    credentials: Credentials
    scheduler: Address
    control_ip: str | None
    host: str
    rails: RailAddresses
    timeout: float

    @classmethod
    def of(cls, gang: Gang, timeout: float) -> Endpoints:
        """Return the endpoints of the rank itself."""
        scheduler_member, own_member = gang.members[0], gang.members[gang.rank]
        rails = [(rail.address, rail.port) for rail in own_member.rails]
        return cls(
            gang.credentials,
            (scheduler_member.host, scheduler_member.port),
            gang.bind_ip,
            own_member.host,
            rails,
            timeout,
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object for a process that this one starts. It contains the gang's secret: use a private
        channel."""
        secret = self.credentials.secret.hex()
        return {**asdict(self), "credentials": {**asdict(self.credentials), "secret": secret}}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Endpoints:
        """Restore the result of :meth:`to_json`."""
        fields = dict(value["credentials"])
        credentials = Credentials(**{**fields, "secret": bytes.fromhex(fields["secret"])})
        scheduler, rails = tuple(value["scheduler"]), [tuple(rail) for rail in value["rails"]]
        return cls(**{**value, "credentials": credentials, "scheduler": scheduler, "rails": rails})

    def dial_scheduler(self) -> ControlLink:
        """Connect to the scheduler. Errors are those of ``Credentials.dial``."""
        deadline = time.monotonic() + self.timeout
        sock = self.credentials.dial(self.scheduler, CONTROL_SERVICE, deadline, self.control_ip)
        return ControlLink(sock, self.timeout)

    def dial(self, address: Address, rail: int, deadline: float) -> socket.socket:
        """Connect to the data service of the daemon at ``address``, from the rail's NIC. Errors as above."""
        return self.credentials.dial(address, DATA_SERVICE, deadline, self.rails[rail][0])
