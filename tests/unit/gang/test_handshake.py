from __future__ import annotations

import socket
import threading
import time
import zlib

import pytest

from sparkdl_comm.errors import AuthenticationError, DeadlineError, GangError, InputError, ProtocolError
from sparkdl_comm.gang import frames, handshake
from sparkdl_comm.gang.frames import FrameBuffer, await_message, encode_frame, recv_frame, send_frame
from sparkdl_comm.gang.handshake import accept, connect

SECRET = b"s" * 32


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


class Server:
    """Accepts one connection in a thread; `error` is what the handshake raised."""

    def __init__(self, listener: socket.socket, secret: bytes = SECRET, seconds: float = 20.0) -> None:
        self.error: BaseException | None = None
        self.sock: socket.socket | None = None
        self.thread = threading.Thread(target=self._run, args=(listener, secret, seconds), daemon=True)
        self.thread.start()

    def _run(self, listener, secret, seconds):
        self.sock, _ = listener.accept()
        try:
            accept(self.sock, secret, soon(seconds))
        except BaseException as exc:  # noqa: BLE001 - looked at by the test
            self.error = exc
            self.sock.close()

    def end(self) -> BaseException | None:
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self.error


def test_right_secret_and_frames_both_ways(listener):
    server = Server(listener)
    client = connect(listener.getsockname(), SECRET, soon(), bind_ip="127.0.0.1")
    assert server.end() is None
    send_frame(client, {"a": "ü", "b": [1, None]}, 100, soon())
    assert recv_frame(server.sock, 100, soon()) == {"a": "ü", "b": [1, None]}
    send_frame(server.sock, {}, 2, soon())
    assert recv_frame(client, 2, soon()) == {}
    client.close()
    with pytest.raises(ConnectionError):
        recv_frame(server.sock, 100, soon())
    server.sock.close()


def test_wrong_secret_is_refused_at_both_ends(listener):
    server = Server(listener, secret=b"t" * 32)
    with pytest.raises(AuthenticationError):
        connect(listener.getsockname(), SECRET, soon())
    assert isinstance(server.end(), AuthenticationError)


def test_client_does_not_trust_a_server_without_the_secret(listener):
    def fake():
        sock, _ = listener.accept()
        sock.recv(4096)
        sock.sendall(handshake.MAGIC + b"n" * 32)
        sock.recv(4096)
        sock.sendall(b"m" * 32)

    threading.Thread(target=fake, daemon=True).start()
    with pytest.raises(AuthenticationError, match="does not know"):
        connect(listener.getsockname(), SECRET, soon())


def test_reflecting_the_clients_own_messages_does_not_help(listener):
    """The mirror sends back nonce and proof of the client, as a server would send its own."""
    done = threading.Event()

    def mirror():
        sock, _ = listener.accept()
        for size in (len(handshake.MAGIC) + 32, 32):
            sock.sendall(sock.recv(size, socket.MSG_WAITALL))
        done.set()
        sock.recv(1)

    threading.Thread(target=mirror, daemon=True).start()
    with pytest.raises(AuthenticationError, match="does not know"):
        connect(listener.getsockname(), SECRET, soon())
    assert done.wait(5)


def test_a_recorded_visit_cannot_be_replayed(listener):
    recorded = []

    server = Server(listener)
    original = handshake.send_all

    def tap(sock, data, deadline, clock=time.monotonic):
        if threading.current_thread() is threading.main_thread():
            recorded.append(bytes(data))
        original(sock, data, deadline, clock)

    handshake.send_all = tap
    try:
        connect(listener.getsockname(), SECRET, soon()).close()
    finally:
        handshake.send_all = original
    assert server.end() is None
    assert [len(data) for data in recorded] == [len(handshake.MAGIC) + 32, 32]
    second = Server(listener)
    with socket.create_connection(listener.getsockname()) as sock:
        sock.sendall(b"".join(recorded))
        assert isinstance(second.end(), AuthenticationError)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, bytes(4096)])
def test_garbage_is_refused_at_once(listener, garbage):
    server = Server(listener, seconds=60)
    with socket.create_connection(listener.getsockname()) as sock:
        sock.sendall(garbage)
        assert isinstance(server.end(), AuthenticationError)


def test_peer_that_says_nothing(listener):
    server = Server(listener, seconds=0.3)
    with socket.create_connection(listener.getsockname()):
        assert isinstance(server.end(), DeadlineError)


def test_one_byte_now_and_then_does_not_extend_the_deadline(listener):
    server = Server(listener, seconds=0.5)
    start = time.monotonic()
    with socket.create_connection(listener.getsockname()) as sock:
        message = handshake.MAGIC + b"n" * 32
        for index in range(len(message)):  # 0.1 s each: 4 s in all
            if not server.thread.is_alive():
                break
            sock.sendall(message[index : index + 1])
            server.thread.join(0.1)
        else:
            pytest.fail("the server waited for all of the message")
    assert isinstance(server.end(), DeadlineError)
    assert time.monotonic() - start < 3.5


def test_deadline_holds_against_a_peer_that_never_pauses():
    """Always one more byte there to be read: the clock is looked at all the same."""
    ticks = iter(range(1000))

    class Dripping:
        def recv_into(self, view):
            view[:1] = b"x"
            return 1

    with pytest.raises(DeadlineError, match="of 1000 bytes"):
        frames.recv_exact(Dripping(), 1000, 10.0, clock=lambda: float(next(ticks)))


def test_client_deadline_when_nobody_answers(listener):
    with pytest.raises(DeadlineError, match=str(listener.getsockname()[1])):
        connect(listener.getsockname(), SECRET, soon(0.3))


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = sock.getsockname()
    with pytest.raises(GangError, match=str(address[1])) as caught:
        connect(address, SECRET, soon())
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


@pytest.mark.parametrize("address", [("no-number.example", 1), ("127.0.0.1", 70_000), ("", "x")])
def test_address_must_be_numeric(address):
    with pytest.raises((InputError, GangError)):
        connect(address, SECRET, soon())


@pytest.mark.parametrize("secret", [b"", b"short"])
def test_secret_of_wrong_length(listener, secret):
    with pytest.raises(InputError):
        connect(listener.getsockname(), secret, soon())


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    with left, right:
        yield left, right


def test_length_is_checked_before_the_body_is_read(pair):
    left, right = pair
    left.sendall(
        (2**32 - 1).to_bytes(4, "big") + bytes(4)
    )  # no body follows: allocating or reading it would fail or hang
    with pytest.raises(GangError, match="4294967295"):
        recv_frame(right, 1000, soon())


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{", b"\xff", b'{"a":' * 20_000])
def test_body_must_be_a_json_object(pair, body):
    left, right = pair
    left.sendall(len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body)
    with pytest.raises(ProtocolError, match="JSON"):
        recv_frame(right, 1 << 20, soon())


@pytest.mark.parametrize("place", [4, 8, -1])
def test_another_byte_is_noticed(pair, place):
    left, right = pair
    frame = bytearray(encode_frame({"a": 1}, 100))
    frame[place] ^= 1
    left.sendall(frame)
    with pytest.raises(ProtocolError, match="checksum"):
        recv_frame(right, 100, soon())


def test_frame_cut_short(pair):
    left, right = pair
    left.sendall(encode_frame({"a": 1}, 100)[:-1])
    left.close()
    with pytest.raises(ConnectionError):
        recv_frame(right, 100, soon())


def test_an_idle_peer_may_take_its_time_but_not_within_a_frame(pair):
    """The deadline begins with the first byte, and a message after a long silence is whole."""
    left, right = pair
    begun = threading.Event()
    got = []

    def serve():
        for seconds in (20.0, 0.2):
            await_message(right)
            begun.set()
            try:
                got.append(recv_frame(right, 100, soon(seconds)))
            except DeadlineError as exc:
                got.append(str(exc))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    frame = encode_frame({"a": 1}, 100)
    assert not begun.wait(0.3)
    left.sendall(frame[:5])
    assert begun.wait(20)
    left.sendall(frame[5:] + frame[:5])
    thread.join(20)
    assert got[0] == {"a": 1}
    assert "5 of 8 bytes" in got[1]


def test_the_end_of_a_peer_ends_the_wait_for_its_message(pair):
    left, right = pair
    left.close()
    await_message(right)
    with pytest.raises(ConnectionError):
        recv_frame(right, 100, soon())


def test_sending_too_much_or_no_json(pair):
    left, _ = pair
    with pytest.raises(InputError):
        send_frame(left, {"a": "x" * 100}, 100, soon())
    with pytest.raises(InputError):
        send_frame(left, {"a": b"bytes"}, 100, soon())


def test_send_has_a_deadline(pair):
    left, _ = pair
    with pytest.raises(DeadlineError):
        send_frame(left, {"a": "x" * (8 << 20)}, 9 << 20, soon(0.3))


def test_reader_and_writer_do_not_share_a_deadline(pair):
    """With `settimeout` the short one would have cut the long one off."""
    left, right = pair
    got = []
    reader = threading.Thread(target=lambda: got.append(recv_frame(left, 100, soon())))
    reader.start()
    with pytest.raises(DeadlineError):
        send_frame(left, {"a": "x" * (8 << 20)}, 9 << 20, soon(0.2))
    assert reader.is_alive()
    send_frame(right, {"late": True}, 100, soon())
    reader.join(20)
    assert got == [{"late": True}]


def test_frame_buffer_checks_the_length_first():
    frames = FrameBuffer(10)
    with pytest.raises(GangError):
        frames.feed((11).to_bytes(4, "big") + bytes(4))
