"""The daemon of one node: does what the scheduler orders, and tells it what came of it.

One thread takes the scheduler's messages; each transfer that is to be sent has a thread, and so has each connection over
which data come. What a node makes of all that is its :class:`Part`: ``worker.py``, ``server.py``, ``aggregator.py``.
"""

from __future__ import annotations

import logging
import threading
import time

import numpy as np

from sparkdl_comm.errors import DeadlineError, GangError, RankLostError, SparkdlCommError
from sparkdl_comm.fabric.counters import InterfaceCounters
from sparkdl_comm.fabric.message import Header, Kind
from sparkdl_comm.fabric.monitor import Monitor
from sparkdl_comm.fabric.pacing import Pacing, Slice
from sparkdl_comm.fabric.part import Part
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
from sparkdl_comm.fabric.sender import Outgoing, Sender
from sparkdl_comm.fabric.wires import Serve, Wires
from sparkdl_comm.gang.frames import TIMEOUT_KEY

#: Seconds for which the scheduler may have nothing to say before its connection is looked at again.
_LISTEN = 3600.0
#: Seconds within which the scheduler, which then ends the job, hears that a node has failed.
_HEARD = 5.0

_log = logging.getLogger(__name__)


class Daemon:
    """``register``: who the node is. ``serve``: see :class:`Serve`. Starts at once; to be closed."""

    def __init__(self, wires: Wires, serve: Serve, part: Part, register: Register) -> None:
        self._wires, self._part, self.register = wires, part, register
        part.tell = self.tell
        self._closed = False
        self._over = threading.Event()
        self._ready = threading.Event()
        self._orders: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        #: Why the node ends: what it failed of itself, if it did.
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
        """Returns when all nodes are there.

        :raises DeadlineError: they are not in time.
        :raises GangError: the scheduler has refused this one, or is lost.
        """
        met = self._ready.wait(self._wires.timeout)
        if self.error is not None:
            raise self.error
        if not met:
            seconds = self._wires.timeout
            raise DeadlineError(f"not all ranks registered with the fabric within {seconds:g} s; set {TIMEOUT_KEY}")

    def tell(self, message: Message) -> None:
        """Says it to the scheduler. If that is lost, :meth:`Part.end` hears of it, not the caller."""
        try:
            self._link.send(message)
        except OSError as exc:
            self._end(RankLostError(f"the fabric's scheduler is lost: {exc}", rank=0))

    def sockets(self) -> list[object]:
        """Everything with a file descriptor, for a forked child to close."""
        return [self._link.sock, *self._sender.sockets(), *self._receiver.sockets()]

    def close(self, patience: float) -> None:
        """Leaves on purpose, when nobody needs what the node has begun any more, or after ``patience`` seconds. May be
        repeated."""
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
        except Exception as exc:  # noqa: BLE001 - the others have to hear why the node ends
            self._fail(exc)
        finally:
            self._end(why)
            self._link.sock.close()

    def _heed(self, message: Message) -> None:
        try:
            self._take(message)
        except Exception as exc:  # noqa: BLE001 - as above
            # This thread goes on to listen: it is to hear that the scheduler has heard.
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
            # What it is made of may have come later than planned: then the rates are kept, not the times.
            late = max(0.0, time.monotonic() - begin - (slices[0].start if slices else 0.0))
            kind, number = Kind(order.content), order.transfer
            header = Header(kind, number, made.version, order.norm, made.count, next_hop=order.next_hop)
            data = made.values.view(np.uint8).data
            self._deliver(Outgoing(header, data, order.rails, Pacing(slices, begin + late), cancelled))
        except Exception as exc:  # noqa: BLE001 - a thread that ended silently would leave its peers waiting
            self._fail(exc)
        finally:
            with self._lock:
                self._orders.pop(order.transfer, None)

    def _deliver(self, transfer: Outgoing) -> None:
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
        """What the node itself does raised: neither can it go on, nor can the others."""
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
        # Peers whose connections were closed would say that this node is lost, and that could be heard first.
        self._over.wait(_HEARD)
        self._end(error)
