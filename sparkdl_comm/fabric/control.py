"""Control connections between daemons and the scheduler over the control NIC: messages as JSON, the scheduler's inbox,
and the directory of the registered daemons.

Decoding checks every field. In the inbox one thread per connection puts its messages into one queue.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, get_args

from sparkdl_comm.errors import ConfError, InputError, ProtocolError, SparkdlCommError
from sparkdl_comm.fabric.core.messages import Node, Role, Roles
from sparkdl_comm.fabric.protocol import Flow, Leave, Message, RailAddresses, Register
from sparkdl_comm.gang.frames import await_message, hang_up, recv_frame, send_frame

_MESSAGE_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}
#: Python types that JSON gives for each annotated field type.
_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "int": int,
    "bool": bool,
    "float": (int, float),
    "str": str,
    "dict[str, Any]": dict,
    **dict.fromkeys(("RailAddresses", "list[int]", "list[Flow]", "list[tuple[float, float, float]]"), list),
}
#: Largest message in bytes.
MAX_FRAME_BYTES = 4 << 20
_log = logging.getLogger(__name__)
#: Role of rank 0 if it does nothing but schedule.
SCHEDULER = "scheduler"
_ROLES: tuple[Role, ...] = ("worker", "server", "replica", "aggregator")


def encode(message: Message) -> dict[str, Any]:
    return {"message": type(message).__name__, **dataclasses.asdict(message)}


def decode(value: dict[str, Any]) -> Message:
    """Return the message that :func:`encode` turned into ``value``.

    :raises ProtocolError: ``value`` has an unknown message type, or a missing, unknown or mistyped field.
    """
    fields = dict(value)
    kind = _MESSAGE_TYPES.get(str(fields.pop("message", None)))
    if kind is None:
        raise ProtocolError(f"unknown fabric message {value.get('message')!r:.40}")
    try:
        for field_ in dataclasses.fields(kind):
            found = fields.get(field_.name)
            if not isinstance(found, _JSON_TYPES[str(field_.type)]):
                raise TypeError(f"{field_.name} is {found!r:.40}, not {field_.type}")
        if "rails" in fields:
            fields["rails"] = [(str(address), int(port)) for address, port in fields["rails"]]
        if "flows" in fields:
            fields["flows"] = [Flow(**flow) for flow in fields["flows"]]
        message: Message = kind(**fields)
    except (TypeError, ValueError) as exc:
        raise ProtocolError(f"malformed fabric message {kind.__name__}: {exc}") from exc
    return message


class ControlLink:
    """Message channel over an authenticated connection. It owns the socket.

    Any thread may send. Only one thread receives.

    :param timeout_seconds: seconds that one message may take.
    """

    def __init__(self, sock: socket.socket, timeout_seconds: float) -> None:
        self.sock, self._timeout_seconds = sock, timeout_seconds
        self._send_lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message.

        :raises ConnectionError: the peer has closed the connection.
        :raises DeadlineError: the peer does not read the message in time.
        """
        with self._send_lock:
            send_frame(self.sock, encode(message), MAX_FRAME_BYTES, time.monotonic() + self._timeout_seconds)

    def receive(self) -> Message:
        """Return the next message.

        :raises ConnectionError: the peer has closed the connection.
        :raises DeadlineError: no message arrives in time.
        :raises ProtocolError: the received frame is not a fabric message.
        """
        return decode(recv_frame(self.sock, MAX_FRAME_BYTES, time.monotonic() + self._timeout_seconds))

    def hang_up(self) -> None:
        """Shut the connection down. The receiving thread gets a ConnectionError and has to close the socket."""
        hang_up(self.sock)


@dataclass
class Peer:
    """Control connection of a daemon. ``node``: None until all nodes have registered."""

    register: Register
    link: ControlLink
    node: Node | None = None

    def send(self, message: Message) -> None:
        """Send a message to the daemon. If the daemon does not take it, end the connection: the daemon is lost."""
        try:
            self.link.send(message)
        except OSError as exc:
            _log.info("cannot send to rank %d, %s: %s", self.register.rank, self.register.role, exc)
            self.link.hang_up()


class ControlInbox:
    """Queue of the daemons' messages. ``timeout``: seconds that a daemon may take to send one message."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._messages: queue.SimpleQueue[tuple[Peer, Message | None]] = queue.SimpleQueue()

    def next_message(self, seconds: float) -> tuple[Peer, Message | None] | None:
        """Return a daemon and its next message, or None if nothing arrives for so many seconds.

        A daemon's first message is :class:`Register`. The message is None when the daemon's connection has ended.
        """
        try:
            return self._messages.get(timeout=seconds)
        except queue.Empty:
            return None

    def serve(self, sock: socket.socket, rank: int) -> None:
        """Receive from a daemon of ``rank`` until it leaves. Takes ownership of the authenticated connection."""
        link = ControlLink(sock, self._timeout)
        try:
            register = link.receive()
            if not isinstance(register, Register) or register.rank != rank:
                raise ProtocolError(
                    f"rank {rank} did not register itself with the fabric first, but sent {type(register).__name__}"
                )
            peer = Peer(register, link)
            self._messages.put((peer, register))
            self._listen(peer)
        finally:
            sock.close()

    def _listen(self, peer: Peer) -> None:
        while True:
            try:
                await_message(peer.link.sock)
                message = peer.link.receive()
            except (OSError, SparkdlCommError) as exc:
                _log.info("control connection of rank %d, %s, ended: %s", peer.register.rank, peer.register.role, exc)
                self._messages.put((peer, None))
                return
            self._messages.put((peer, message))
            if isinstance(message, Leave):
                return


@dataclass(frozen=True)
class Directory:
    """Registered nodes of a job, with their hosts.

    - ``nodes``: the registration of each node.
    - ``hosts``: the number of each host.
    - ``num_replica_aggregators``: how many aggregators, the last ones, work for replicas.
    - ``elements``: elements of each server's shard of the model. Empty if there are no servers.
    """

    nodes: dict[Node, Register]
    hosts: dict[str, int]
    num_replica_aggregators: int
    elements: tuple[int, ...]

    @classmethod
    def of(cls, registrations: Sequence[Register], replica_aggregators: int) -> Directory:
        """Build the directory from the registrations of all daemons.

        :param replica_aggregators: how many aggregators work for the replicas, if there are replicas.
        :raises ConfError: the shards do not form one model, or there are fewer aggregators than
            ``replica_aggregators``.
        :raises InputError: the daemons registered with different parameters, or a replica with another model than its
            server.
        """
        for other in registrations:
            if other.limits != registrations[0].limits:
                raise InputError(
                    f"rank {other.rank} registered with {other.limits}, rank {registrations[0].rank} with"
                    f" {registrations[0].limits}: all ranks must give the same values"
                )
        hosts: dict[str, int] = {}
        for register in registrations:
            if register.role != SCHEDULER:  # it sends and receives no data
                hosts.setdefault(register.host, len(hosts))
        nodes: dict[Node, Register] = {}
        for role in _ROLES:
            of_role = sorted((r for r in registrations if r.role == role), key=lambda r: (r.shard, r.rank))
            nodes |= {Node(role, index): register for index, register in enumerate(of_role)}
            if role in ("server", "replica") and [each.shard for each in of_role] != list(range(len(of_role))):
                raise ConfError(
                    f"shards {[each.shard for each in of_role]}: each {role} must register a different shard,"
                    " counted from 0"
                )
        for node, replica in nodes.items():
            server = nodes.get(Node("server", node.index))
            if node.role == "replica" and (
                server is None or (server.elements, server.crc) != (replica.elements, replica.crc)
            ):
                raise InputError(f"rank {replica.rank}, a replica, begins with a different model than its server")
        aggregators = _count(nodes, "aggregator")
        num_replica_aggregators = replica_aggregators if _count(nodes, "replica") else 0
        if num_replica_aggregators > aggregators:
            raise ConfError(
                f"{num_replica_aggregators} aggregators requested for replicas, but there are only {aggregators}."
                " Start more, or request fewer"
            )
        elements = tuple(nodes[Node("server", shard)].elements for shard in range(_count(nodes, "server")))
        return cls(nodes, hosts, num_replica_aggregators, elements)

    @cached_property
    def roles(self) -> Roles:
        """Hosts of all nodes, by role.

        :raises ConfError: there is no worker, or no server.
        """
        hosts_by_role: dict[str, tuple[int, ...]] = {
            role: tuple(self.host(Node(role, index)) for index in range(_count(self.nodes, role))) for role in _ROLES
        }
        num_server_aggregators = len(hosts_by_role["aggregator"]) - self.num_replica_aggregators
        return Roles(
            workers=hosts_by_role["worker"],
            servers=hosts_by_role["server"],
            aggregators=hosts_by_role["aggregator"][:num_server_aggregators],
            replicas=hosts_by_role["replica"],
            replica_aggregators=hosts_by_role["aggregator"][num_server_aggregators:],
        )

    def for_reduction(self, root: Node, elements: int) -> Directory:
        """Return the directory of an all-reduce: the same workers and aggregators, with worker ``root`` as the only
        server.

        :param elements: length of the vector.
        """
        nodes = {node: register for node, register in self.nodes.items() if node.role in ("worker", "aggregator")}
        return Directory({**nodes, Node("server", 0): nodes[root]}, self.hosts, 0, (elements,))

    def host(self, node: Node) -> int:
        """Return the number of the node's host."""
        return self.hosts[self.nodes[node].host]

    def rank(self, node: Node) -> int:
        """Return the rank of the node."""
        return self.nodes[node].rank

    def describe(self, node: Node) -> str:
        """Return the node's name for messages to people."""
        return f"the {node.role} of rank {self.rank(node)}"

    def rails(self, node: Node) -> RailAddresses:
        """Return the addresses at which the node receives data."""
        return self.nodes[node].rails

    def shard_range(self, shard: int | None) -> tuple[int, int]:
        """Return the first element and the number of elements of a shard; of the whole model if ``shard`` is None."""
        if shard is None:
            return 0, sum(self.elements)
        return [0, *accumulate(self.elements)][shard], self.elements[shard]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each server's shard."""
        return tuple(4 * count for count in self.elements)


def _count(nodes: dict[Node, Register], role: Role) -> int:
    return sum(1 for node in nodes if node.role == role)
