"""The bridge: the connection of a Python worker to its executor's JVM, a Unix-domain socket.

The first 32 bytes are the token; then come requests, and their answers back, each one frame: four bytes of length
(big-endian) and a JSON object in UTF-8. Requests in POSTED get no answer; if one fails, the next other request is answered
with that. The wire is pinned by tests/golden/bridge, which the Scala tests read too.
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

PROTOCOL = 12
#: Requests that have no answer, as they are made many times in an iteration; PostedRequest on the executor's side.
POSTED = frozenset({"cut", "publish", "prefetch", "push"})
MAX_FRAME = 16 << 20
ADVERTISEMENT = "sparkdl-bridge.json"

#: The JVM keeps the deadlines of what it waits for; this much later, in seconds, the JVM itself is given up.
_GRACE = 30.0


def encode_frame(message: dict[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME:
        raise BridgeError(f"a request of {len(body)} bytes to the executor; at most {MAX_FRAME} are allowed")
    return len(body).to_bytes(4, "big") + body


class Bridge:
    """One rank's requests to its executor. Not thread-safe, but :meth:`abort` may be called from any thread."""

    def __init__(self, path: str, token: bytes, timeout: float) -> None:
        self._deferred = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout + _GRACE)
        try:
            self._socket.connect(path)
            self._socket.sendall(token)
        except OSError as exc:
            self._socket.close()
            raise BridgeError(f"the executor's bridge at {path} does not answer: {exc}") from exc

    @classmethod
    def of_this_executor(cls, timeout: float) -> Bridge:
        """Connects to the executor that runs this Python worker.

        :param timeout: seconds that one request may take, on the executor's side.
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
        """Send one of POSTED; the next :meth:`request` raises what went wrong with it."""
        self.defer(op, **fields)
        self._flush(op)

    def defer(self, op: str, **fields: Any) -> None:
        """As :meth:`post`, but it goes with what is sent next: for what no other rank waits for."""
        assert op in POSTED, op
        self._deferred += encode_frame({"op": op, **fields})

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """The executor's answer.

        :raises DeadlineError, RankLostError, PersistenceError, PluginError, ConfError, BridgeError: as the executor says.
        """
        self._deferred += encode_frame({"op": op, **fields})
        self._flush(op)
        return self._answer(op)

    def _flush(self, op: str) -> None:
        frames, self._deferred = self._deferred, b""
        try:
            self._socket.sendall(frames)
        except OSError as exc:
            raise BridgeError(f"the connection to the executor broke before {op}: {exc}") from exc

    def _answer(self, op: str) -> dict[str, Any]:
        try:
            length = int.from_bytes(self._receive(4), "big")
            if length > MAX_FRAME:
                raise BridgeError(f"the executor announced an answer of {length} bytes to {op}; at most {MAX_FRAME}")
            answer: dict[str, Any] = json.loads(self._receive(length))
        except TimeoutError as exc:
            raise DeadlineError(
                f"the executor did not answer {op} within {self._socket.gettimeout()} s"
                " (spark.sparkdl.comm.timeout and a grace)"
            ) from exc
        except OSError as exc:
            raise BridgeError(f"the connection to the executor broke in {op}: {exc}") from exc
        if answer.get("ok") is not True:
            raise _error(op, answer)
        return answer

    def abort(self) -> None:
        """Wakes a request that waits: it raises BridgeError, and the executor drops this rank's session."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # not connected any more, which is what we want

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


def _error(op: str, answer: dict[str, Any]) -> SparkdlCommError:
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
