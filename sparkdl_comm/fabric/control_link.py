"""Connection between a daemon and the scheduler over the control NIC, and its messages as JSON.

Decoding checks every field.
"""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from typing import Any, get_args

from sparkdl_comm.errors import ProtocolError
from sparkdl_comm.fabric.protocol import Flow, Message
from sparkdl_comm.gang.frames import Clock, hang_up, recv_frame, send_frame

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
            if field_.name in fields and not isinstance(fields[field_.name], _JSON_TYPES[str(field_.type)]):
                raise TypeError(f"{field_.name} is {fields[field_.name]!r:.40}, not {field_.type}")
        if "rails" in fields:
            fields["rails"] = [(str(address), int(port)) for address, port in fields["rails"]]
        if "flows" in fields:
            fields["flows"] = [Flow(**flow) for flow in fields["flows"]]
        message: Message = kind(**fields)
    except (TypeError, ValueError) as exc:
        raise ProtocolError(f"malformed fabric message {kind.__name__}: {exc}") from exc
    return message


#: Largest message in bytes.
MAX_FRAME_BYTES = 4 << 20


class ControlLink:
    """Message channel over an authenticated connection. It owns the socket.

    Any thread may send. Only one thread receives.

    :param timeout_seconds: seconds that sending one message may take.
    """

    def __init__(self, sock: socket.socket, timeout_seconds: float, clock: Clock = time.monotonic) -> None:
        self.sock = sock
        self._timeout_seconds, self._clock = timeout_seconds, clock
        self._send_lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message.

        :raises ConnectionError: the peer has closed the connection.
        :raises DeadlineError: the peer does not read the message in time.
        """
        with self._send_lock:
            send_frame(self.sock, encode(message), MAX_FRAME_BYTES, self._clock() + self._timeout_seconds, self._clock)

    def receive(self, timeout_seconds: float) -> Message:
        """Return the next message, waiting up to ``timeout_seconds``.

        :raises ConnectionError: the peer has closed the connection.
        :raises DeadlineError: no message arrives in time.
        :raises ProtocolError: the received frame is not a fabric message.
        """
        return decode(recv_frame(self.sock, MAX_FRAME_BYTES, self._clock() + timeout_seconds, self._clock))

    def hang_up(self) -> None:
        """Shut the connection down. The receiving thread gets a ConnectionError and has to close the socket."""
        hang_up(self.sock)
