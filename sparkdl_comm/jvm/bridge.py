"""Bridge: connection of a Python worker to its executor's JVM over a Unix-domain socket.

The worker first sends the token, 32 bytes, then requests. The executor sends answers. Each request and each answer is one
frame: four bytes of length (big-endian) and a JSON object in UTF-8. Requests in POSTED get no answer; if one fails, the answer
to the next other request is that error. The golden files in tests/golden/bridge fix the wire format, also for the Scala tests.
"""

from __future__ import annotations

import base64
import json
import os
import socket
from typing import Any

from sparkdl_comm.errors import (
    BridgeError,
    ConfError,
    DeadlineError,
    PersistenceError,
    PluginError,
    RankLostError,
    SparkdlCommError,
)

PROTOCOL = 13
#: Requests without an answer, because each iteration sends many of them. The executor calls them PostedRequest.
POSTED = frozenset({"cut", "publish", "prefetch", "push"})
MAX_FRAME = 16 << 20
ADVERTISEMENT = "sparkdl-bridge.json"

#: Seconds after a request's timeout at which the worker gives up the JVM. Until then the JVM reports the timeout itself.
_GRACE_SECONDS = 30.0


def encode_frame(message: dict[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME:
        raise BridgeError(f"a request to the executor has {len(body)} bytes. The limit is {MAX_FRAME}.")
    return len(body).to_bytes(4, "big") + body


class Bridge:
    """Connection of one rank to its executor. Not thread-safe, but :meth:`abort` may be called from any thread."""

    def __init__(self, path: str, token: bytes, timeout: float) -> None:
        self._deferred = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout + _GRACE_SECONDS)
        try:
            self._socket.connect(path)
            self._socket.sendall(token)
        except OSError as exc:
            self._socket.close()
            raise BridgeError(f"the executor's bridge at {path} does not answer: {exc}") from exc

    @classmethod
    def connect(cls, timeout: float) -> Bridge:
        """Connect to the executor that runs this Python worker.

        :param timeout: seconds that the executor may take for one request.
        :raises PluginError: the plugin is not loaded there.
        """
        directory = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        try:
            with open(os.path.join(directory, ADVERTISEMENT), encoding="utf-8") as file:
                advertisement = json.load(file)
        except FileNotFoundError as exc:
            raise PluginError(
                "this executor has no sparkdl_comm plugin: set spark.plugins=sparkdl.comm.CommPlugin and put the jar into"
                " spark.jars before the session starts (sparkdl_comm.spark_conf() gives both)"
            ) from exc
        return cls(advertisement["socket"], base64.b64decode(advertisement["token"]), timeout)

    def post(self, op: str, **fields: Any) -> None:
        """Send a request of POSTED. If it fails, the next :meth:`request` raises the error."""
        self.defer(op, **fields)
        self._flush(op)

    def defer(self, op: str, **fields: Any) -> None:
        """Queue a request of POSTED until the next one is sent. Use it if no other rank waits for the request."""
        assert op in POSTED, op
        self._deferred += encode_frame({"op": op, **fields})

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request, and return the executor's answer.

        :raises DeadlineError, RankLostError, PersistenceError, PluginError, ConfError, BridgeError: the executor's error.
        """
        self._deferred += encode_frame({"op": op, **fields})
        self._flush(op)
        return self._receive_answer(op)

    def _flush(self, op: str) -> None:
        frames, self._deferred = self._deferred, b""
        try:
            self._socket.sendall(frames)
        except OSError as exc:
            raise BridgeError(f"the connection to the executor broke before {op}: {exc}") from exc

    def _receive_answer(self, op: str) -> dict[str, Any]:
        try:
            length = int.from_bytes(self._receive(4), "big")
            if length > MAX_FRAME:
                raise BridgeError(
                    f"the executor announced an answer of {length} bytes to {op}. The limit is {MAX_FRAME}."
                )
            answer: dict[str, Any] = json.loads(self._receive(length))
        except TimeoutError as exc:
            raise DeadlineError(
                f"the executor did not answer {op} within {self._socket.gettimeout()} s"
                " (spark.sparkdl.comm.timeout and a grace)"
            ) from exc
        except OSError as exc:
            raise BridgeError(f"the connection to the executor broke in {op}: {exc}") from exc
        if answer.pop("ok", None) is not True:
            raise _make_error(op, answer)
        return answer

    def abort(self) -> None:
        """End a waiting request with BridgeError. The executor then drops this rank's session."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # already disconnected

    def close(self) -> None:
        self._socket.close()

    def _receive(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            received = self._socket.recv_into(view)
            if received == 0:
                raise ConnectionResetError("the executor closed the connection")
            view = view[received:]
        return bytes(data)


def _make_error(op: str, answer: dict[str, Any]) -> SparkdlCommError:
    kind, message = answer.get("error"), f"{answer.get('op', op)}: {answer.get('message')}"
    peer = answer.get("peer", -1)
    if kind == "Deadline":
        return DeadlineError(message)
    if kind == "PeerLost" and peer >= 0:
        return RankLostError(message, rank=peer)
    if kind == "File":
        return PersistenceError(message)
    if kind == "Plugin":
        return PluginError(message)
    if kind == "Conf":
        return ConfError(message)
    return BridgeError(f"{message} ({kind})")
