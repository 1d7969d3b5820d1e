"""Membership in the gang, the ranks of one fit: joining, connections between ranks, and failure detection.

1. Every rank binds and keeps its listening socket. Only then is the port announced.
2. One exchange distributes all ranks' addresses and payloads. Ranks in Spark meet at the driver's listener
   (``rendezvous``).
3. Every other rank connects to rank 0, proves the secret, and sends its rank and attempt. Rank 0 sends ``go`` when all
   have joined.

The connections are a star of N - 1 around rank 0. They carry no gradients, and are idle most of the time. A rank reports
its failure over them, and rank 0 sends the verdict to all ranks. A rank that closes on purpose sends ``leave`` first. An
EOF without ``leave`` or a report means that the rank died. Further connections between ranks (the store, peers of a
collective) use the same listening sockets: ``serve`` and ``dial``.
"""

from __future__ import annotations

import os
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from sparkdl_comm.errors import DeadlineError, GangError, InputError, RankLostError
from sparkdl_comm.gang import frames, listen
from sparkdl_comm.gang.control import VERDICT_SECONDS, ControlPlane
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.frames import TIMEOUT_KEY, Clock
from sparkdl_comm.gang.handshake import MAX_HELLO, Credentials
from sparkdl_comm.gang.listen import RAILS_KEY, Acceptor
from sparkdl_comm.gang.members import Exchange, Member, Rail, format_ranks, gather_members
from sparkdl_comm.gang.store import GangStore, StoreService

#: Seconds that other ranks wait longer than rank 0, so that rank 0 can name the missing ranks.
GRACE_SECONDS = 3.0
#: Maximum seconds that closing waits for connection threads. Only threads of strangers take that long.
CONNECTION_SECONDS = 1.0
CONTROL = "control"


class Gang:
    """Membership of one rank in its gang. Thread-safe.

    Close it, as Spark may keep the process for other tasks. As a context manager it closes itself, and announces an
    exception that ends the context.
    """

    def __init__(self, rank: int, world: int, secret: bytes, attempt: str, clock: Clock) -> None:
        """Create an unconnected gang. Call :meth:`join` instead."""
        self.rank = rank
        self.world = world
        self.attempt = attempt
        self.members: tuple[Member, ...] = ()
        self.host = ""
        self.credentials = Credentials(rank, attempt, secret)
        self._clock = clock
        self.bind_ip: str | None = None
        self._present = {rank}
        self._handlers: dict[str, Callable[[socket.socket, int], None]] = {}
        self._gather_count = 0
        self._extra_sockets: list[Callable[[], list[socket.socket]]] = []
        self._control: ControlPlane
        self._store: StoreService

    @classmethod
    def join(
        cls,
        *,
        rank: int,
        world: int,
        host: str,
        exchange: Exchange,
        secret: bytes,
        attempt: str,
        payload: dict[str, Any] | None = None,
        timeout: float,
        nic: str | None = None,
        rails: Sequence[str] = (),
        ports: range | None = None,
        clock: Clock = time.monotonic,
    ) -> Gang:
        """Join the other ``world`` - 1 ranks within ``timeout`` seconds. Return when all ranks have joined.

        :param exchange: the rendezvous; called once. It has its own deadline.
        :param nic: NIC to listen on instead of ``host``: interface name, IP or CIDR.
        :param rails: NICs of the collectives. Empty: only the NIC that the gang listens on.
        :param ports: ports to try. None: the system chooses a free port.
        :raises ConfError: there is no such NIC, or no free port.
        :raises InputError: the payload is not JSON.
        :raises DeadlineError: ranks are missing. The message names these ranks.
        :raises AuthenticationError: a peer does not know the secret.
        :raises RankLostError: a rank died meanwhile.
        :raises GangError: rank 0 refused this rank, or the ranks do not form a gang.

        Errors of ``exchange`` are passed on.
        """
        if not 0 <= rank < world:
            raise InputError(f"rank {rank} of {world}")
        deadline = clock() + timeout
        gang = cls(rank, world, secret, attempt, clock)
        gang.host = listen.choose_address(host, nic)
        gang.bind_ip = gang.host if nic is not None else None
        addresses = [listen.choose_address(host, rail, RAILS_KEY) for rail in rails] or [gang.host]
        acceptors = {
            ip: Acceptor(ip, ports, secret, gang._on_peer, clock, peers=world) for ip in {gang.host, *addresses}
        }
        gang._control = ControlPlane(rank, world, list(acceptors.values()), clock)
        gang._store = StoreService(rank, world, serve=gang.serve, dial=gang.dial, check=gang.check, clock=clock)
        gang._control.on_failure(gang._store.fail)
        _close_in_children(gang)
        port = {ip: acceptor.address[1] for ip, acceptor in acceptors.items()}
        own_rails = tuple(Rail(ip, listen.network_of(ip), port[ip]) for ip in addresses)
        me = Member(rank, gang.host, listen.nics_to_advertise(gang.host), port[gang.host], own_rails, payload or {})
        try:
            gang.members = gather_members(me, world, attempt, exchange)
            if rank != 0:
                gang._control.add_peer(0, gang.dial(0, CONTROL, deadline))
            gang._await_all(deadline, timeout)
        except BaseException:
            gang._shut(leave=False)
            raise
        return gang

    @property
    def rails(self) -> tuple[Rail, ...]:
        """Rails of this rank: its NICs for collectives."""
        return self.members[self.rank].rails

    # ---- failure

    def announce_failure(self, failure: Failure) -> None:
        """Report a failure to all ranks, through rank 0. Return when the gang has settled on one failure, after 2 s at
        most.
        """
        self._control.announce(failure)

    def failure(self) -> Failure | None:
        """Return the gang's failure, or None. It is the first failure, equal at every rank, and never replaced."""
        return self._control.failure

    def check(self, wait: float = 0.0) -> None:
        """Raise the gang's failure as a typed error, if there is one now or within ``wait`` seconds.

        A rank often sees a broken connection before the gang has settled on the cause. ``wait`` gives it time to do so.
        """
        with self._control.changed:
            self._control.changed.wait_for(lambda: self._control.failure is not None, wait)
        failure = self._control.failure
        if failure is not None:
            raise failure.to_exception()

    def tolerate(self, on_lost: Callable[[int], None]) -> None:
        """Stop treating a vanished rank as the gang's failure. Called on rank 0.

        ``on_lost`` is called with the lost rank, in the control thread, so it must be quick. A rank that announces a
        failure still fails the gang.
        """
        self._control.on_lost = on_lost

    def on_failure(self, callback: Callable[[Failure], None]) -> None:
        """Call ``callback`` once when the gang fails: in the control thread, so it must be quick.

        If the gang has failed already, call it immediately in this thread.
        """
        self._control.on_failure(callback)

    # ---- connections

    def serve(self, kind: str, handler: Callable[[socket.socket, int], None]) -> None:
        """Call ``handler(sock, rank)`` for each member that dials this rank for ``kind``, in a new thread.

        The handler owns the authenticated, non-blocking socket.
        """
        self._handlers[kind] = handler

    def dial(self, rank: int, kind: str, deadline: float, rail: int | None = None) -> socket.socket:
        """Return an authenticated, non-blocking connection to the ``serve`` handler for ``kind`` of ``rank``.

        :param rail: connect between the NICs of this rail. None: the gang's NIC.
        :raises RankLostError: nobody listens there any more.
        :raises AuthenticationError: the listener does not know the secret.
        :raises DeadlineError: there is no connection in time.
        """
        member = self.members[rank]
        where = f"{kind} connection of rank {self.rank} to rank {rank}"
        try:
            address, bind_ip = (member.host, member.port), self.bind_ip
            if rail is not None:
                address, bind_ip = (member.rails[rail].address, member.rails[rail].port), self.rails[rail].address
            return self.credentials.dial(address, kind, deadline, bind_ip, self._clock)
        except DeadlineError as exc:
            raise DeadlineError(f"{where}: {exc.message}", rank=rank) from exc
        except GangError as exc:
            self.check(VERDICT_SECONDS)
            if isinstance(exc.__cause__, ConnectionRefusedError):
                raise RankLostError(f"{where}: {exc.message}", rank=rank) from exc
            raise type(exc)(f"{where}: {exc.message}") from exc
        except ConnectionError as exc:
            raise RankLostError(f"{where}: {exc}", rank=rank) from exc

    def close_in_children(self, sockets: Callable[[], list[socket.socket]]) -> None:
        """Make forked children (a DataLoader's workers) close these sockets too. Otherwise peers see no EOF while a
        child lives.
        """
        self._extra_sockets.append(sockets)

    def store(self, prefix: str) -> GangStore:
        """Return a torch.distributed store, kept at rank 0. Stores with equal prefixes share their keys."""
        return self._store.open(prefix)

    def all_gather(self, value: bytes | Callable[[list[bytes]], bytes], timeout: float) -> list[bytes]:
        """Return the values of all ranks, by rank, up to 4 MiB per rank. It takes one trip to rank 0.

        All ranks call it in the same order, from one thread.

        :param value: this rank's value. On rank 0 perhaps a function that computes it from the values of all other
            ranks.
        :raises DeadlineError: a rank does not call it within ``timeout`` seconds.

        It also raises the errors of :class:`~sparkdl_comm.gang.store.GangStore`.
        """
        turn, self._gather_count = self._gather_count, self._gather_count + 1
        return self._store.gather(f"all-gather/{turn}", value, timeout)

    def wait_until_alone(self, wait: float) -> bool:
        """Wait on rank 0, which keeps the store, until all other ranks have left, at most ``wait`` seconds.

        Return whether they have left. On other ranks, return False immediately.

        :raises GangError: the gang has failed; its failure.
        """
        if self.rank == 0:
            with self._control.changed:
                self._control.changed.wait_for(
                    lambda: self._control.failure is not None or self._control.is_alone(), wait
                )
        self.check()
        return self.rank == 0 and self._control.is_alone()

    def close(self) -> None:
        """Leave on purpose, so that the others do not take it for a failure. Takes at most about 2 s. May be called
        again.
        """
        self._shut(leave=True)

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, kind: object, exc: BaseException | None, where: object) -> None:
        # An exception that was not announced must not look like a clean leave: the other ranks would wait.
        if exc is not None and self.failure() is None:
            self.announce_failure(Failure.of(exc, self.rank))
        self.close()

    # ---- inside

    def sockets(self) -> list[Any]:
        """Return everything with a file descriptor, for a forked child to close."""
        more = [sock for sockets in self._extra_sockets for sock in sockets()]
        return [*self._control.sockets(), *self._store.sockets(), *more]

    def _shut(self, leave: bool) -> None:
        self._control.stop(leave)
        self._store.close()
        # A thread that still serves the store refers to the gang, and through it to all failure callbacks. Wait for these
        # threads, so that a garbage collection can free that memory now: an idle process runs no later one.
        self._control.join_connections(CONNECTION_SECONDS)

    def _on_peer(self, sock: socket.socket, hello: dict[str, Any]) -> None:
        """Admit an authenticated peer of this attempt that has not joined yet, or pass it to its handler.

        Runs in the connection's thread.
        """
        kind, rank = hello.get("kind"), hello.get("rank")
        with self._control.changed:
            handler = self._handlers.get(kind) if isinstance(kind, str) else None
            refusal = None
            if hello.get("attempt") != self.attempt:
                refusal = f"this is gang attempt {self.attempt}, not {hello.get('attempt')!s:.80}"
            elif type(rank) is not int or not 0 <= rank < self.world:
                refusal = f"there is no rank {rank!r:.20} in a gang of {self.world}"
            elif kind == CONTROL and (self.rank != 0 or rank in self._present):
                refusal = f"rank {rank} has registered already"
            elif kind != CONTROL and handler is None:
                refusal = f"rank {self.rank} has no {kind!r:.40} service"
            elif kind == CONTROL:
                self._present.add(rank)
                self._control.add_peer(rank, sock)
                self._control.changed.notify_all()
                return
        if refusal is None and handler is not None and isinstance(rank, int):
            handler(sock, rank)
            return
        message = {"type": "refused", "reason": refusal}
        frames.send_frame(sock, message, MAX_HELLO, self._clock() + 1.0, self._clock)
        raise GangError(f"refused: {refusal}")

    def _await_all(self, deadline: float, timeout: float) -> None:
        control = self._control
        all_ranks = set(range(self.world))

        def done() -> bool:
            complete = self._present == all_ranks if self.rank == 0 else control.is_complete
            return complete or control.failure is not None

        grace = 0.0 if self.rank == 0 else GRACE_SECONDS
        with control.changed:
            is_done = control.changed.wait_for(done, max(0.0, deadline + grace - self._clock()))
            missing = sorted(all_ranks - self._present) if self.rank == 0 else [0]
        self.check()
        if not is_done:
            verb = "did not join" if self.rank == 0 else "did not say who is in"
            error = DeadlineError(
                f"{format_ranks(missing)} of {self.world} {verb} in gang attempt {self.attempt} within {timeout:g} s; "
                f"look at the log of the executor, or set {TIMEOUT_KEY}",
                rank=missing[0],
                phase="join",
            )
            self.announce_failure(Failure.of(error, self.rank, secondary=False))
            raise error
        if self.rank == 0:
            control.send_go()


#: Gangs of this process whose connections a forked child closes, such as a DataLoader's worker. A child that outlives a
#: killed rank would keep its connections open, and no peer would see an EOF.
_gangs: weakref.WeakSet[Gang] = weakref.WeakSet()


def _close_in_children(gang: Gang) -> None:
    """Make children that are forked during the gang's life close all of the gang's sockets."""
    if not _gangs:
        os.register_at_fork(after_in_child=_close_all)
    _gangs.add(gang)


def _close_all() -> None:
    for gang in list(_gangs):
        for sock in gang.sockets():
            sock.close()  # never shutdown(): that would end the parent's connection too
    _gangs.clear()
