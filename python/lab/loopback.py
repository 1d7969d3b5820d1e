"""Cluster without links: all hosts are addresses of the loopback interface. It shows correctness, not times."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import TracebackType

from lab.cluster import Cluster
from lab.layout import CONTROL, HEAD, MAX_HOSTS, HostId, RailId
from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology


class Loopback(Cluster):
    """Hosts on the loopback interface, which need no permission.

    Host h has the address 127.<r+1>.0.<h+1> on rail r, and the control address 127.0.1.<h+1>. Several clusters share
    these addresses, so they may not listen on the same ports.
    """

    def __init__(self, topology: Topology) -> None:
        if len(topology.hosts) > MAX_HOSTS:
            raise ConfError(f"{topology} has {len(topology.hosts)} hosts; a lab can have {MAX_HOSTS}")
        self.topology = topology
        self._started = []

    def __enter__(self) -> Loopback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_started()

    def address(self, host: HostId, rail: RailId = 0) -> str:
        number = 254 if host == HEAD else int(host) + 1
        return f"127.0.1.{number}" if rail == CONTROL else f"127.{int(rail) + 1}.0.{number}"

    def command(self, host: HostId, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def _port(self) -> int:
        with socket.create_server((self.address(0), 0)) as server:
            return int(server.getsockname()[1])
