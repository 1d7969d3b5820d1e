"""Whose turn it is to send over one rail: one message at a time leaves a NIC, in the order of the rank's program.

If all were sent at once, they would share the NIC, and each would take as long as all of them: whoever could go on with the
first one would begin late, and several senders would meet at one receiver's port. Plans are made for that order, and the
cost model counts on it.

A peer that does not take its message, since it is not that far yet, does not hold up the others: after a while in which it
took nothing, the next message is sent too.
"""

from __future__ import annotations

from operator import attrgetter

from sparkdl_comm.collectives.engine.connection import Connection

#: Seconds. Longer than a packet and its acknowledgement take through full queues.
PATIENCE = 0.1


class Rail:
    """The connections of one rank over one rail. Not thread-safe: the engine's thread only."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        #: The connections that may send, or may when the kernel takes more; as of the last :meth:`order`.
        self.first: list[Connection] = []
        #: True if further ready connections wait behind the last of :attr:`first`, whose send buffer is full.
        self.is_held_up = False

    def order(self, now: float) -> Connection | None:
        """Finds out who is first; the connection to send over now, if there is one."""
        ready = sorted((c for c in self.connections if c.wants_to_send), key=attrgetter("place"))
        self.first = []
        for connection in ready:
            self.first.append(connection)
            last = len(self.first) == len(ready)
            if not connection.is_full:
                self.is_held_up = False
                return connection
            if last or not connection.is_stalled(now, PATIENCE):
                break
        self.is_held_up = len(self.first) < len(ready)
        return None
