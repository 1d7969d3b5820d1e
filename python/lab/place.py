"""Place of a rank program in a cluster of the lab, and its environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from sparkdl_comm.errors import InputError
from sparkdl_comm.topology import Topology


@dataclass(frozen=True)
class Place:
    """Place of rank ``rank`` of ``topology``.

    ``peers[r]`` has the IPv4 addresses of rank r, one per rail. ``control`` is this rank's address on the unshaped
    network. Rank 0 may listen on ``port`` for the others.

    The environment has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR (rank 0's on rail 0) and MASTER_PORT,
    as torch reads them; SPARKDL_LAB_TOPOLOGY (text), SPARKDL_LAB_ADDRESSES (this rank's, separated by commas),
    SPARKDL_LAB_PEERS (JSON), SPARKDL_LAB_CONTROL.
    """

    rank: int
    topology: Topology
    peers: tuple[tuple[str, ...], ...]
    control: str
    port: int

    @property
    def world(self) -> int:
        return self.topology.world

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of this rank, one per rail."""
        return self.peers[self.rank]

    def environment(self) -> dict[str, str]:
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(self.rank % self.topology.ranks_per_host),
            "LOCAL_WORLD_SIZE": str(self.topology.ranks_per_host),
            "MASTER_ADDR": self.peers[0][0],
            "MASTER_PORT": str(self.port),
            "SPARKDL_LAB_TOPOLOGY": str(self.topology),
            "SPARKDL_LAB_ADDRESSES": ",".join(self.addresses),
            "SPARKDL_LAB_PEERS": json.dumps(self.peers),
            "SPARKDL_LAB_CONTROL": self.control,
        }

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Place:
        """Return the place of this process.

        :raises InputError: a lab did not start it.
        """
        try:
            return cls(
                rank=int(environment["RANK"]),
                topology=Topology.parse(environment["SPARKDL_LAB_TOPOLOGY"]),
                peers=tuple(map(tuple, json.loads(environment["SPARKDL_LAB_PEERS"]))),
                control=environment["SPARKDL_LAB_CONTROL"],
                port=int(environment["MASTER_PORT"]),
            )
        except KeyError as exc:
            raise InputError(f"no {exc.args[0]} in the environment: run this program with Lab.run") from None
