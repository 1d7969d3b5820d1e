"""Daemon of one node: carries out the scheduler's orders and reports their outcome.

One thread receives the scheduler's messages. Each transfer to be sent has a thread, and so has each data connection
from a peer. The node's role, a :class:`NodeRole`, produces and consumes the data.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sparkdl_comm.errors import DeadlineError, GangError, RankLostError, SparkdlCommError
from sparkdl_comm.fabric import protocol
from sparkdl_comm.fabric.control import ControlLink
from sparkdl_comm.fabric.core.messages import Piece
from sparkdl_comm.fabric.monitor import InterfaceCounters, Monitor
from sparkdl_comm.fabric.roles import NodeRole
from sparkdl_comm.fabric.sender import OutgoingTransfer, Pacing, Sender
from sparkdl_comm.fabric.transport import Arrival, Header, Receiver
from sparkdl_comm.gang.frames import TIMEOUT_KEY, await_message
from sparkdl_comm.gang.handshake import Address, Credentials

#: ``serve(kind, handler)``: call ``handler(sock, rank)``, in a new thread, for each peer that connects for ``kind``.
ServiceRegistrar = Callable[[str, Callable[[socket.socket, int], None]], None]
#: Seconds to wait for the scheduler to end the job after this node has reported its failure.
_FAILURE_SECONDS = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endpoints:
    """Addresses and identity of a daemon: what it needs to reach the others, and to be reached.

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
    rails: protocol.RailAddresses
    timeout: float

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
        sock = self.credentials.dial(self.scheduler, protocol.CONTROL_SERVICE, deadline, self.control_ip)
        return ControlLink(sock, self.timeout)

    def dial(self, address: Address, rail: int, deadline: float) -> socket.socket:
        """Connect to the data service of the daemon at ``address``, from the rail's NIC. Errors as above."""
        return self.credentials.dial(address, protocol.DATA_SERVICE, deadline, self.rails[rail][0])


class Daemon:
    """Daemon of the node that ``register`` describes. It starts at once and must be closed.

    :param serve: registers the handler of data connections.
    """

    def __init__(
        self, endpoints: Endpoints, serve: ServiceRegistrar, node_role: NodeRole, register: protocol.Register
    ) -> None:
        self._endpoints, self._node_role, self.register = endpoints, node_role, register
        node_role.report = self.report
        self._is_closed = False
        self._ended = threading.Event()
        self._all_registered = threading.Event()
        self._cancellations: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        #: Why the node ends; its own failure takes precedence.
        self.error: SparkdlCommError | None = None
        self._receiver = Receiver(self._on_arrival, self._fail, endpoints.timeout)
        self._sender = Sender(endpoints.dial, endpoints.timeout)
        serve(protocol.DATA_SERVICE, self._receiver.serve)
        self._link = endpoints.dial_scheduler()
        counters = InterfaceCounters([address for address, _ in endpoints.rails])
        self._monitor = Monitor(counters, self._sender.take_active, self.report)
        self._thread = threading.Thread(target=self._listen, name=f"sparkdl-fabric-{register.role}", daemon=True)
        self._thread.start()
        self.report(register)

    def await_registrations(self) -> None:
        """Wait until all nodes have registered.

        :raises DeadlineError: not all registered within the timeout.
        :raises GangError: the scheduler refused this node, or is lost.
        """
        is_complete = self._all_registered.wait(self._endpoints.timeout)
        if self.error is not None:
            raise self.error
        if not is_complete:
            seconds = self._endpoints.timeout
            raise DeadlineError(f"not all ranks registered with the fabric within {seconds:g} s; set {TIMEOUT_KEY}")

    def report(self, message: protocol.Message) -> None:
        """Send a message to the scheduler. If the scheduler is lost, call :meth:`NodeRole.end` and do not raise."""
        try:
            self._link.send(message)
        except OSError as exc:
            self._end(RankLostError(f"the fabric's scheduler is lost: {exc}", rank=0))

    def sockets(self) -> list[object]:
        """Return everything that has a file descriptor, for a forked child to close."""
        return [self._link.sock, *self._sender.sockets(), *self._receiver.sockets()]

    def close(self, patience: float) -> None:
        """Leave the fabric once nobody needs this node's started work, or after ``patience`` seconds. May be called
        repeatedly."""
        if self._is_closed:
            return
        self._node_role.await_idle(patience)
        self._is_closed = True
        self.report(protocol.Leave())
        self._monitor.close()
        self._link.hang_up()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._endpoints.timeout)

    # ---- the thread that listens to the scheduler

    def _listen(self) -> None:
        error: SparkdlCommError | None = None
        try:
            while True:
                await_message(self._link.sock)
                message = self._link.receive()
                if isinstance(message, protocol.End):
                    error = GangError(message.why) if message.why else None
                    break
                self._handle_or_fail(message)
        except OSError as exc:  # DeadlineError is one too
            if not self._is_closed:
                error = RankLostError(f"the fabric's scheduler is lost: {exc}", rank=0)
        except Exception as exc:  # noqa: BLE001 - the other nodes must learn why this one ends
            self._fail(exc)
        finally:
            self._end(error)
            self._link.sock.close()

    def _handle_or_fail(self, message: protocol.Message) -> None:
        try:
            self._handle(message)
        except Exception as exc:  # noqa: BLE001 - as above
            # This thread must go on listening: it receives the scheduler's answer to the failure.
            threading.Thread(target=self._fail, args=(exc,), name="sparkdl-fabric-failing", daemon=True).start()

    def _end(self, error: SparkdlCommError | None) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
            self.error = self.error or error
            for cancelled in self._cancellations.values():
                cancelled.set()
        self._sender.close()
        self._receiver.close()
        self._node_role.end(self.error)
        self._all_registered.set()

    def _handle(self, message: protocol.Message) -> None:
        if isinstance(message, protocol.Welcome):
            self._node_role.on_message(message)
            self._monitor.start()
            self._all_registered.set()
        elif isinstance(message, protocol.Expect):
            self._node_role.on_message(message)
            self._receiver.expect(message)
        elif isinstance(message, protocol.Send):
            self._node_role.on_message(message)
            self._start_sending(message)
        elif isinstance(message, protocol.Repace):
            transfer = self._sender.find(message.transfer)
            if transfer is not None:
                transfer.repace([Piece(*each) for each in message.slices], time.monotonic())
        elif isinstance(message, protocol.Fence):
            self._receiver.fence(message.transfers, message.lost)
            self._node_role.on_fence(message)
        else:
            if isinstance(message, protocol.Cancel):
                self._receiver.cancel(message.transfer)
                with self._lock:
                    cancelled = self._cancellations.get(message.transfer)
                if cancelled is not None:
                    cancelled.set()
            self._node_role.on_message(message)

    # ---- data

    def _start_sending(self, order: protocol.Send) -> None:
        cancelled = threading.Event()
        with self._lock:
            self._cancellations[order.transfer] = cancelled
        begin = time.monotonic()
        name = f"sparkdl-fabric-transfer-{order.transfer}"
        threading.Thread(target=self._send, args=(order, begin, cancelled), name=name, daemon=True).start()

    def _send(self, order: protocol.Send, begin: float, cancelled: threading.Event) -> None:
        try:
            payload = self._node_role.await_payload(order)
            if payload is None or cancelled.is_set():
                return
            slices = [Piece(*each) for each in order.slices]
            # If the inputs arrived later than planned, keep the rates and shift the times.
            delay = max(0.0, time.monotonic() - begin - (slices[0].start if slices else 0.0))
            kind, number = protocol.Kind(order.content), order.transfer
            header = Header(kind, number, payload.version, order.norm, payload.count, next_hop=order.next_hop)
            data = payload.values.view(np.uint8).data
            self._deliver(OutgoingTransfer(header, data, order.rails, Pacing(slices, begin + delay), cancelled))
        except Exception as exc:  # noqa: BLE001 - a thread that ended silently would leave its peers waiting
            self._fail(exc)
        finally:
            with self._lock:
                self._cancellations.pop(order.transfer, None)

    def _deliver(self, transfer: OutgoingTransfer) -> None:
        try:
            self._sender.send(transfer)
        except SparkdlCommError as exc:
            _log.warning("rank %d, %s: %s", self.register.rank, self.register.role, exc.message)
            self.report(protocol.Broken(transfer.header.id, exc.message))

    def _on_arrival(self, arrival: Arrival) -> None:
        try:
            self._node_role.on_arrival(arrival)
        except Exception as exc:  # noqa: BLE001 - as above
            self._fail(exc)

    def _fail(self, exc: Exception) -> None:
        """Report an exception in the node's own work to the scheduler, and end. The job cannot continue without this
        node."""
        if self._ended.is_set():
            return
        own_name, rank = f"rank {self.register.rank}, {self.register.role} of the fabric", self.register.rank
        _log.error("%s, failed", own_name, exc_info=exc)
        error = exc if isinstance(exc, SparkdlCommError) else GangError(repr(exc), rank=rank)
        failure = protocol.Failed(
            f"{own_name}, failed: {error.message}", type(error).__name__, rank if error.rank is None else error.rank
        )
        with self._lock:
            self.error = self.error or error
        self.report(failure)
        # If the connections closed first, peers might report this node as lost before the scheduler reads the failure.
        self._ended.wait(_FAILURE_SECONDS)
        self._end(error)
