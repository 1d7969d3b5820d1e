"""Order of messages over one rail: one message at a time leaves a NIC, in the order of the rank's program.

If all messages were sent at once, they would share the NIC, and each would take as long as all of them. The receiver of
the first one would continue late, and several senders would meet at one receiver's port. Plans are made for the order
of the program, and the cost model assumes it.

A peer that does not take its message, because it has not come that far, does not hold up others. When it has taken
nothing for a while, the next message is sent, too.
"""

from __future__ import annotations

from operator import attrgetter

from sparkdl_comm.collectives.engine.connection import Connection

#: Seconds without progress after which the next message is sent. Longer than the round trip of a packet through full
#: queues.
PATIENCE_SECONDS = 0.1


class Rail:
    """Connections of one rank over one rail. Not thread-safe: only the engine's thread uses it."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        #: Connections that may send now, or when the kernel takes more bytes. :meth:`pick_connection` updates them.
        self.candidates: list[Connection] = []
        #: True if more ready connections wait behind the last one of :attr:`candidates`, whose send buffer is full.
        self.is_held_up = False

    def pick_connection(self, now: float) -> Connection | None:
        """Update :attr:`candidates`, and return the connection to send over now; None if there is none."""
        ready = sorted((c for c in self.connections if c.wants_to_send), key=attrgetter("send_order"))
        self.candidates = []
        for connection in ready:
            self.candidates.append(connection)
            last = len(self.candidates) == len(ready)
            if not connection.is_full:
                self.is_held_up = False
                return connection
            if last or not connection.is_stalled(now, PATIENCE_SECONDS):
                break
        self.is_held_up = len(self.candidates) < len(ready)
        return None
