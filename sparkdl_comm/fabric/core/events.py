"""The scheduler's inputs.

Times are seconds on the caller's clock and are passed with the event, so hosts' clocks do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl_comm.fabric.core.nodes import Node


@dataclass(frozen=True)
class Update:
    """Update that a worker has ready.

    - ``id``: unique number within the job.
    - ``sizes``: bytes of the component for each server.
    - ``base``: version of the model from which the update was computed, counted in updates.
    - ``norm``: L2 norm over all components, before multiplying by the step size.
    """

    id: int
    worker: int
    sizes: tuple[int, ...]
    base: int
    norm: float

    @property
    def bytes(self) -> int:
        """Total bytes of all components."""
        return sum(self.sizes)


@dataclass(frozen=True)
class UpdateReady:
    """``push``: a worker has an update.

    The worker keeps it until the scheduler has dropped it, or it has reached the server and any replica.
    """

    update: Update


@dataclass(frozen=True)
class ModelRequested:
    """``get``: a worker wants the model. ``sizes``: bytes of the model at each server."""

    worker: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class BandwidthReported:
    """Bandwidth of a host's NIC for this job, its own transfers included: bytes per second ``up`` (out) and ``down``
    (in)."""

    host: int
    up: float
    down: float


@dataclass(frozen=True)
class TransferProgressed:
    """Bytes of a transfer sent so far. Optional: without it, a transfer is assumed to keep its schedule."""

    transfer: int
    sent: int


@dataclass(frozen=True)
class TransferEnded:
    """A transfer has arrived completely. A server or replica has also applied it."""

    transfer: int


@dataclass(frozen=True)
class NodeLost:
    """A node has failed.

    The loss of one server makes all replicas replace all servers. ``versions``: the replicas' versions at that
    moment, as the replicas report them.
    """

    node: Node
    versions: tuple[int, ...] = ()


Event = UpdateReady | ModelRequested | BandwidthReported | TransferProgressed | TransferEnded | NodeLost
