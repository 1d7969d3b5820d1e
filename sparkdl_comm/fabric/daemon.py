"""Daemon of one node: carries out the scheduler's orders and reports their outcome.

One thread receives the scheduler's messages. Each transfer to be sent has a thread, and so has each data connection
from a peer. The node's role, a :class:`NodeRole`, produces and consumes the data: ``worker.py``, ``server.py`` or
``aggregator.py``.
"""

from __future__ import annotations

import logging
import threading
import time

import numpy as np

from sparkdl_comm.errors import DeadlineError, GangError, RankLostError, SparkdlCommError
from sparkdl_comm.fabric.counters import InterfaceCounters
from sparkdl_comm.fabric.endpoints import Endpoints, ServiceRegistrar
from sparkdl_comm.fabric.message import Header, Kind
from sparkdl_comm.fabric.monitor import Monitor
from sparkdl_comm.fabric.node_role import NodeRole
from sparkdl_comm.fabric.pacing import Pacing, Slice
from sparkdl_comm.fabric.protocol import (
    DATA,
    Broken,
    Cancel,
    End,
    Expect,
    Failed,
    Fence,
    Leave,
    Message,
    Register,
    Repace,
    Send,
    Welcome,
)
from sparkdl_comm.fabric.receiver import Arrival, Receiver
from sparkdl_comm.fabric.sender import OutgoingTransfer, Sender
from sparkdl_comm.gang.frames import TIMEOUT_KEY

#: Timeout in seconds of one wait for a message of the scheduler. The wait is then repeated.
_LISTEN = 3600.0
#: Seconds to wait for the scheduler to end the job after this node has reported its failure.
_HEARD = 5.0

_log = logging.getLogger(__name__)


class Daemon:
    """Daemon of the node that ``register`` describes. It starts at once and must be closed.

    :param serve: registers the handler of data connections; see :class:`ServiceRegistrar`.
    """

    def __init__(self, wires: Endpoints, serve: ServiceRegistrar, part: NodeRole, register: Register) -> None:
        self._wires, self._part, self.register = wires, part, register
        part.tell = self.tell
        self._closed = False
        self._over = threading.Event()
        self._ready = threading.Event()
        self._orders: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        #: Why the node ends; its own failure takes precedence.
        self.error: SparkdlCommError | None = None
        self._receiver = Receiver(self._arrived, self._fail, wires.timeout)
        self._sender = Sender(wires.dial, wires.timeout)
        serve(DATA, self._receiver.serve)
        self._link = wires.dial_scheduler()
        counters = InterfaceCounters([address for address, _ in wires.rails])
        self._monitor = Monitor(counters, self._sender.active, self.tell)
        self._thread = threading.Thread(target=self._listen, name=f"sparkdl-fabric-{register.role}", daemon=True)
        self._thread.start()
        self.tell(register)

    def await_all(self) -> None:
        """Wait until all nodes have registered.

        :raises DeadlineError: not all registered within the timeout.
        :raises GangError: the scheduler refused this node, or is lost.
        """
        met = self._ready.wait(self._wires.timeout)
        if self.error is not None:
            raise self.error
        if not met:
            seconds = self._wires.timeout
            raise DeadlineError(f"not all ranks registered with the fabric within {seconds:g} s; set {TIMEOUT_KEY}")

    def tell(self, message: Message) -> None:
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
        if self._closed:
            return
        self._part.finish(patience)
        self._closed = True
        self.tell(Leave())
        self._monitor.close()
        self._link.hang_up()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._wires.timeout)

    # ---- the thread that listens to the scheduler

    def _listen(self) -> None:
        why: SparkdlCommError | None = None
        try:
            while True:
                try:
                    message = self._link.receive(_LISTEN)
                except DeadlineError:
                    continue
                if isinstance(message, End):
                    why = GangError(message.why) if message.why else None
                    break
                self._heed(message)
        except ConnectionError as exc:
            if not self._closed:
                why = RankLostError(f"the fabric's scheduler is lost: {exc}", rank=0)
        except Exception as exc:  # noqa: BLE001 - the other nodes must learn why this one ends
            self._fail(exc)
        finally:
            self._end(why)
            self._link.sock.close()

    def _heed(self, message: Message) -> None:
        try:
            self._take(message)
        except Exception as exc:  # noqa: BLE001 - as above
            # This thread must go on listening: it receives the scheduler's answer to the failure.
            threading.Thread(target=self._fail, args=(exc,), name="sparkdl-fabric-failing", daemon=True).start()

    def _end(self, why: SparkdlCommError | None) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
            self.error = self.error or why
            for cancelled in self._orders.values():
                cancelled.set()
        self._sender.close()
        self._receiver.close()
        self._part.end(self.error)
        self._ready.set()

    def _take(self, message: Message) -> None:
        if isinstance(message, Welcome):
            self._part.hear(message)
            self._monitor.start()
            self._ready.set()
        elif isinstance(message, Expect):
            self._part.hear(message)
            self._receiver.expect(message)
        elif isinstance(message, Send):
            self._part.hear(message)
            self._start(message)
        elif isinstance(message, Repace):
            transfer = self._sender.find(message.transfer)
            if transfer is not None:
                transfer.repace([Slice(*each) for each in message.slices], time.monotonic())
        elif isinstance(message, Fence):
            self._receiver.fence(message.transfers, message.lost)
            self._part.fence(message)
        else:
            if isinstance(message, Cancel):
                self._receiver.cancel(message.transfer)
                with self._lock:
                    cancelled = self._orders.get(message.transfer)
                if cancelled is not None:
                    cancelled.set()
            self._part.hear(message)

    # ---- data

    def _start(self, order: Send) -> None:
        cancelled = threading.Event()
        with self._lock:
            self._orders[order.transfer] = cancelled
        begin = time.monotonic()
        name = f"sparkdl-fabric-transfer-{order.transfer}"
        threading.Thread(target=self._send, args=(order, begin, cancelled), name=name, daemon=True).start()

    def _send(self, order: Send, begin: float, cancelled: threading.Event) -> None:
        try:
            made = self._part.values(order)
            if made is None or cancelled.is_set():
                return
            slices = [Slice(*each) for each in order.slices]
            # If the inputs arrived later than planned, keep the rates and shift the times.
            late = max(0.0, time.monotonic() - begin - (slices[0].start if slices else 0.0))
            kind, number = Kind(order.content), order.transfer
            header = Header(kind, number, made.version, order.norm, made.count, next_hop=order.next_hop)
            data = made.values.view(np.uint8).data
            self._deliver(OutgoingTransfer(header, data, order.rails, Pacing(slices, begin + late), cancelled))
        except Exception as exc:  # noqa: BLE001 - a thread that ended silently would leave its peers waiting
            self._fail(exc)
        finally:
            with self._lock:
                self._orders.pop(order.transfer, None)

    def _deliver(self, transfer: OutgoingTransfer) -> None:
        try:
            self._sender.send(transfer)
        except SparkdlCommError as exc:
            _log.warning("rank %d, %s: %s", self.register.rank, self.register.role, exc.message)
            self.tell(Broken(transfer.header.id, exc.message))

    def _arrived(self, arrival: Arrival) -> None:
        try:
            self._part.arrived(arrival)
        except Exception as exc:  # noqa: BLE001 - as above
            self._fail(exc)

    def _fail(self, exc: Exception) -> None:
        """Report an exception in the node's own work to the scheduler, and end. The job cannot continue without this
        node."""
        if self._over.is_set():
            return
        me, rank = f"rank {self.register.rank}, {self.register.role} of the fabric", self.register.rank
        _log.error("%s, failed", me, exc_info=exc)
        error = exc if isinstance(exc, SparkdlCommError) else GangError(repr(exc), rank=rank)
        said = Failed(
            f"{me}, failed: {error.message}", type(error).__name__, rank if error.rank is None else error.rank
        )
        with self._lock:
            self.error = self.error or error
        self.tell(said)
        # If the connections closed first, peers might report this node as lost before the scheduler reads the failure.
        self._over.wait(_HEARD)
        self._end(error)
