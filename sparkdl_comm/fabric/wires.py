"""What a daemon's process needs to reach the others, and to be reached: who it is, and its NICs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sparkdl_comm.fabric.control_link import ControlLink
from sparkdl_comm.fabric.protocol import CONTROL, DATA, RailAddresses
from sparkdl_comm.gang.credentials import Credentials
from sparkdl_comm.gang.handshake import Address

if TYPE_CHECKING:  # an aggregator's process does without torch
    from sparkdl_comm.gang.gang import Gang


class Serve(Protocol):
    """Has ``handler(sock, rank)`` called for each peer that dials for ``kind``, in a thread of its own; as ``Gang.serve``."""

    def __call__(self, kind: str, handler: Callable[[socket.socket, int], None]) -> None: ...


@dataclass(frozen=True)
class Wires:
    """``scheduler``: where rank 0 listens, on the control NIC. ``control_ip``: of this host's control NIC, if one was chosen.
    ``host``: how this host is called. ``rails``: where data come in. ``timeout``: seconds that a peer may keep us waiting."""

    credentials: Credentials
    scheduler: Address
    control_ip: str | None
    host: str
    rails: RailAddresses
    timeout: float

    @classmethod
    def of(cls, gang: Gang, timeout: float) -> Wires:
        """Those of the rank itself."""
        first, me = gang.members[0], gang.members[gang.rank]
        rails = [(rail.address, rail.port) for rail in me.rails]
        return cls(gang.credentials, (first.host, first.port), gang.bind_ip, me.host, rails, timeout)

    def to_json(self) -> dict[str, Any]:
        """For a process that this one starts; with the gang's secret, so only by a way that nobody else can read."""
        secret = self.credentials.secret.hex()
        return {**asdict(self), "credentials": {**asdict(self.credentials), "secret": secret}}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Wires:
        """Inverse of :meth:`to_json`."""
        told = dict(value["credentials"])
        credentials = Credentials(**{**told, "secret": bytes.fromhex(told["secret"])})
        scheduler, rails = tuple(value["scheduler"]), [tuple(rail) for rail in value["rails"]]
        return cls(**{**value, "credentials": credentials, "scheduler": scheduler, "rails": rails})

    def dial_scheduler(self) -> ControlLink:
        """A connection to the scheduler. Errors are those of ``Credentials.dial``."""
        deadline = time.monotonic() + self.timeout
        sock = self.credentials.dial(self.scheduler, CONTROL, deadline, self.control_ip)
        return ControlLink(sock, self.timeout)

    def dial(self, address: Address, rail: int, deadline: float) -> socket.socket:
        """A connection for data to the daemon at ``address``, from the NIC of the rail. Errors as above."""
        return self.credentials.dial(address, DATA, deadline, self.rails[rail][0])
