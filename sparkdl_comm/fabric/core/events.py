"""What the scheduler is told. Times are seconds on the caller's clock, passed with the event, so that hosts' clocks do not
matter."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl_comm.fabric.core.roles import Node


@dataclass(frozen=True)
class Update:
    """An update that a worker has ready.

    ``id``: unique in the job. ``sizes``: bytes of the component for each server. ``base``: the version of the model that it
    was computed from, counted in updates. ``norm``: its L2 norm before it is multiplied by the step size, over all components.
    """

    id: int
    worker: int
    sizes: tuple[int, ...]
    base: int
    norm: float

    @property
    def bytes(self) -> int:
        """Of all components."""
        return sum(self.sizes)


@dataclass(frozen=True)
class UpdateReady:
    """``push``: a worker has an update. It keeps it until the scheduler has had it sent to the server, and to the replica if
    there is one, or has dropped it."""

    update: Update


@dataclass(frozen=True)
class ModelRequested:
    """``get``: a worker wants the model. ``sizes``: bytes of the model at each server."""

    worker: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class BandwidthReported:
    """What the monitor of ``host`` found that this job can use of its NIC, its own transfers included: bytes per second that
    leave (``up``) and arrive (``down``)."""

    host: int
    up: float
    down: float


@dataclass(frozen=True)
class TransferProgressed:
    """How many bytes of a transfer have been sent. Optional: until one comes, transfers are taken to keep to their
    schedule."""

    transfer: int
    sent: int


@dataclass(frozen=True)
class TransferEnded:
    """All bytes of a transfer have arrived, and were applied if the target is a server or a replica."""

    transfer: int


@dataclass(frozen=True)
class NodeLost:
    """A node has failed. A lost server is replaced by its replicas, all of them at once; ``versions``: those of
    the replicas then, as they say themselves."""

    node: Node
    versions: tuple[int, ...] = ()


Event = UpdateReady | ModelRequested | BandwidthReported | TransferProgressed | TransferEnded | NodeLost
