"""The Python side of the bridge against a socket that plays the executor."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkdl_comm.errors import BridgeError, ConfError, DeadlineError, PersistenceError, PluginError, RankLostError
from sparkdl_comm.jvm import bridge as wire
from sparkdl_comm.jvm.bridge import Bridge, encode_frame
from sparkdl_comm.strategies.ps.memory import SharedSegment
from tests.golden import regenerate

GOLDEN = Path(__file__).parents[2] / "golden"
TOKEN = bytes(range(32))


class Executor:
    """Answers each request with the next of `answers`: bytes as they are, or a dict. Keeps what it got."""

    def __init__(self, path: Path, answers: list[object]) -> None:
        self.token = b""
        self.requests: list[dict] = []
        self._answers = answers
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with self._listener, self._listener.accept()[0] as connection, connection.makefile("rb") as stream:
            self.token = stream.read(32)
            for answer in self._answers:
                length = stream.read(4)
                if len(length) < 4:
                    return
                self.requests.append(json.loads(stream.read(int.from_bytes(length, "big"))))
                if answer is None:
                    connection.recv(1)
                    return
                connection.sendall(answer if isinstance(answer, bytes) else encode_frame(answer))


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., tuple[Bridge, Executor]]]:
    bridges = []

    def make(*answers: object, timeout: float = 10) -> tuple[Bridge, Executor]:
        executor = Executor(tmp_path / "bridge", list(answers))
        bridges.append(Bridge(str(tmp_path / "bridge"), TOKEN, timeout))
        return bridges[-1], executor

    yield make
    for bridge in bridges:
        bridge.close()


def test_golden_files_are_what_the_code_makes():
    for name, data in regenerate.contents().items():
        assert (GOLDEN / name).read_bytes() == data, f"{name}: see tests/golden/regenerate.py"


def test_the_token_comes_first_and_answers_come_back(connect):
    bridge, executor = connect({"ok": True, "bytes": 7})
    assert bridge.request("pull", version=3)["bytes"] == 7
    assert executor.token == TOKEN
    assert executor.requests == [{"op": "pull", "version": 3}]


def test_a_posted_request_fails_the_next_one(connect):
    bridge, executor = connect(b"", {"ok": False, "op": "publish", "error": "Internal", "message": "disk full"})
    bridge.post("publish", version=1)
    with pytest.raises(BridgeError, match="publish: disk full"):
        bridge.request("pull", version=1)
    executor.thread.join(5)
    assert [request["op"] for request in executor.requests] == ["publish", "pull"]


def test_a_deferred_request_goes_before_the_next_one(connect):
    bridge, executor = connect(b"", b"", {"ok": True})
    bridge.defer("prefetch", version=1)
    bridge.post("push", version=0, batch=0)
    bridge.request("collect", version=0, batch=0)
    executor.thread.join(5)
    assert [request["op"] for request in executor.requests] == ["prefetch", "push", "collect"]


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ((GOLDEN / "bridge/reply.bin").read_bytes(), RankLostError, "rank 2"),
        ({"ok": False, "error": "Deadline", "message": "waited", "peer": 1}, DeadlineError, "waited"),
        ({"ok": False, "error": "PeerLost", "message": "gone", "peer": -1}, BridgeError, "gone"),
        ({"ok": False, "error": "File", "message": "cannot list s3a://b/c"}, PersistenceError, "s3a://b/c"),
        ({"ok": False, "error": "Protocol", "message": "what?"}, BridgeError, "Protocol"),
        ({"ok": False, "error": "Plugin", "message": "another jar"}, PluginError, "another jar"),
        ({"ok": False, "error": "Conf", "message": "no port is free"}, ConfError, "no port"),
        ({}, BridgeError, "pull"),
        (b"\x7f\xff\xff\xff", BridgeError, "The limit is 16777216"),
    ],
)
def test_what_goes_wrong_is_typed(connect, answer, error, text):
    bridge, _ = connect(answer)
    with pytest.raises(error, match=text):
        bridge.request("pull", version=0)


def test_abort_wakes_a_request_that_waits(connect):
    bridge, _ = connect(None)
    threading.Timer(0.2, bridge.abort).start()
    with pytest.raises(BridgeError, match="broke in pull"):
        bridge.request("pull", version=0)


def test_an_executor_that_hangs_is_given_up(connect, monkeypatch):
    monkeypatch.setattr(wire, "_GRACE_SECONDS", 0.1)
    bridge, _ = connect(None, timeout=0.1)
    with pytest.raises(DeadlineError, match="spark.sparkdl.comm.timeout"):
        bridge.request("pull", version=0)


def test_without_the_plugin_the_error_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    with pytest.raises(PluginError, match=r"spark\.plugins=sparkdl\.comm\.CommPlugin"):
        Bridge.connect(1)


def test_a_segment_is_shared_and_has_no_name():
    segment = SharedSegment(4096)
    with open(segment.path, "r+b") as other:
        other.seek(8)
        other.write(b"\x00\x00\x80\x3f")
    segment.detach()
    view = segment.view_floats(8, 2)
    assert view.tolist() == [1.0, 0.0]
    del segment
    view[1] = 5
    assert view.tolist() == [1.0, 5.0], "views keep the mapping alive"
    maps = Path("/proc/self/maps").read_text()
    assert "memfd:sparkdl (deleted)" in maps
    del view
    assert "memfd:sparkdl" not in Path("/proc/self/maps").read_text()
