from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import (
    AuthenticationError,
    ConfError,
    DeadlineError,
    GangError,
    InputError,
    ModelError,
    ProtocolError,
    RankLostError,
)
from sparkdl_comm.gang import frames
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.frames import send_frame
from sparkdl_comm.gang.tensors import DTYPES, describe, raw
from sparkdl_comm.job.driver_client import DriverClient
from sparkdl_comm.job.driver_listener import DriverListener
from sparkdl_comm.job.task import RankTask
from tests.unit.gang_helpers import SECONDS, SECRET, hangs_up, wait_for


def soon(seconds: float = SECONDS) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def seen():
    return []


@pytest.fixture
def listener(seen):
    with DriverListener("127.0.0.1", None, SECRET, seen.append, attempt="e/0") as listener:
        yield listener


def connect(listener: DriverListener, attempt: str = "e/0", **more) -> DriverClient:
    return DriverClient.connect(listener.address, SECRET, attempt, SECONDS, **more)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and bytes(raw(left)) == bytes(raw(right))


def test_tensors_of_all_kinds(listener):
    torch.manual_seed(0)
    sent = {
        **{f"type {name}": torch.randint(0, 2, (3, 5)).to(dtype) for name, dtype in DTYPES.items()},
        "bf16": torch.randn(7).bfloat16(),
        "empty": torch.empty(0, 3),
        "0-dim": torch.tensor(2.5),
        "0-dim bf16": torch.tensor(2.5).bfloat16(),
        "transposed": torch.randn(4, 6).t(),
        "strided": torch.arange(10)[::3],
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "ünïcode": torch.tensor([float("nan"), float("-inf")]),
    }
    with connect(listener) as client:
        client.send_tensors(sent)
    got = listener.tensors(soon())
    assert list(got) == list(sent)
    for name in sent:
        assert same(got[name], sent[name]), name
    assert listener.tensors(soon(0)) is got  # again, after rank 0 has closed


def test_large_tensors(listener):
    big = torch.arange(24 << 20, dtype=torch.int32)  # 96 MiB
    odd = torch.arange(1 << 20, dtype=torch.int16)[1:]
    with connect(listener) as client:
        client.send_tensors({"big": big, "odd": odd})
    got = listener.tensors(soon())
    assert torch.equal(got["big"], big)
    assert torch.equal(got["odd"], odd)


def test_a_byte_of_the_tensors_that_is_another_one(listener, monkeypatch):
    """TCP's checksum lets one of 65,536 errors pass."""
    plain = frames.send_all

    def spoil(sock, data, *more):
        if len(data) == 4096:
            data = bytearray(data)
            data[1000] ^= 1
        plain(sock, data, *more)

    monkeypatch.setattr(frames, "send_all", spoil)
    with connect(listener) as client, pytest.raises(GangError, match="went away, or refused"):
        client.send_tensors({"w": torch.ones(1024)})
    with pytest.raises(GangError, match="other bytes"):
        listener.tensors(soon())


def test_progress_arrives_in_order_before_the_tensors(listener, seen):
    with connect(listener) as client:
        for step in range(50):
            assert client.progress({"step": step, "loss": float("nan") if step == 49 else 0.5})
        client.send_tensors({"w": torch.ones(2)})
    listener.tensors(soon())
    assert [progress["step"] for progress in seen] == list(range(50))
    assert seen[49]["loss"] != seen[49]["loss"]


def test_printed_lines():
    seen = []
    with DriverListener("127.0.0.1", None, SECRET, seen.append, on_log=lambda *log: seen.append(log)) as listener:
        with connect(listener) as client:
            assert client.log(["one", "t\u00fco"], 0)
            client.send_tensors({})
            assert client.log([1000 * "\U0001f600"] * 100, 7)
        wait_for(lambda: len(seen) == 2)
    assert seen == [(["one", "t\u00fco"], 0), ([1000 * "\U0001f600"] * 100, 7)]


def test_why_the_gang_failed():
    failure = Failure(1, 7, "forward", "KeyError", "x" * 5000, "Traceback ...", log="one\ntwo")
    with DriverListener("127.0.0.1", None, SECRET, print, attempt="e/0") as listener:
        assert listener.failure(soon(0)) is None
        with connect(listener) as client:
            client.failed(failure)
            assert listener.failure(soon()) == failure


def test_progress_that_is_no_json(listener):
    with connect(listener) as client:
        with pytest.raises(InputError):
            client.progress({"x": b""})
        with pytest.raises(InputError):
            client.progress({"x": "y" * (64 << 10)})
        client.send_tensors({})


def test_on_progress_that_raises_does_not_stop_the_model():
    def broken(progress: dict) -> None:
        raise RuntimeError("a bug of the progress bar")

    with DriverListener("127.0.0.1", None, SECRET, broken) as listener, connect(listener) as client:
        client.progress({})
        client.send_tensors({"w": torch.ones(2)})
        assert torch.equal(listener.tensors(soon())["w"], torch.ones(2))


def test_progress_is_dropped_while_the_driver_is_busy():
    go_on = threading.Event()
    seen = []

    def slow(progress: dict) -> None:
        seen.append(progress["step"])
        go_on.wait(2 * SECONDS)

    with DriverListener("127.0.0.1", None, SECRET, slow) as listener, connect(listener) as client:
        client._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sent = []
        for step in range(1000):  # 60 MB in all: no kernel buffers that much
            if client.progress({"step": step, "text": "x" * 60_000}):
                sent.append(step)
        assert len(sent) < 1000
        go_on.set()
        client.send_tensors({"w": torch.ones(2)})  # what was cut in the middle goes out whole before it
        listener.tensors(soon())
        assert seen == sent


def test_driver_vanishes(seen):
    listener = DriverListener("127.0.0.1", None, SECRET, seen.append)
    with connect(listener) as client:
        assert client.progress({"step": 0})
        assert wait_for(lambda: seen)
        listener.close()
        assert wait_for(lambda: not client.progress({"step": 1}))
        assert client.progress({"step": 2}) is False
        with pytest.raises(GangError, match="driver"):
            client.send_tensors({"w": torch.ones(2)})
    with pytest.raises(GangError, match="closed"):
        listener.tensors(soon())


def test_driver_vanishes_while_tensors_travel(seen):
    block = threading.Event()
    listener = DriverListener("127.0.0.1", None, SECRET, lambda progress: block.wait(SECONDS))
    with connect(listener) as client:
        client.progress({})  # the listener reads nothing more
        threading.Timer(0.3, lambda: (listener.close(), block.set())).start()
        with pytest.raises(GangError, match="driver"):
            client.send_tensors({"w": torch.ones(32 << 20)})


def test_driver_that_stands_still():
    block = threading.Event()
    with DriverListener("127.0.0.1", None, SECRET, lambda progress: block.wait(SECONDS)) as listener:
        with connect(listener, stall_seconds=0.3) as client:
            client.progress({})
            with pytest.raises(DeadlineError, match="driver"):
                client.send_tensors({"w": torch.ones(32 << 20)})
        block.set()


def test_rank_0_vanishes(listener):
    client = connect(listener)
    client._sock.close()
    with pytest.raises(RankLostError) as caught:
        listener.tensors(soon())
    assert caught.value.rank == 0


def test_rank_0_vanishes_in_the_middle_of_a_tensor(listener):
    client = connect(listener)
    header = {"type": "tensors", **describe({"w": torch.ones(1000)})}
    send_frame(client._sock, header, 1 << 20, soon())
    frames.send_all(client._sock, bytes(100), soon())
    client._sock.close()
    with pytest.raises(RankLostError):
        listener.tensors(soon())


def test_rank_0_closes_without_a_model(listener):
    connect(listener).close()
    with pytest.raises(GangError, match="without having sent"):
        listener.tensors(soon())


def test_deadline_of_tensors(listener):
    with pytest.raises(DeadlineError, match="e/0 did not connect"):
        listener.tensors(soon(0.1))
    with connect(listener), pytest.raises(DeadlineError, match="e/0 sent no model"):
        listener.tensors(soon(0.1))


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"tensors": [{"name": "w", "dtype": "qint8", "shape": [24]}], "bytes": 24},
        {"tensors": [{"name": "w", "dtype": "float32", "shape": [1 << 40]}], "bytes": 4 << 40},
    ],
)
def test_wrong_header(listener, header):
    client = connect(listener)
    send_frame(client._sock, {"type": "tensors", **header}, 1 << 20, soon())
    with pytest.raises(GangError):
        listener.tensors(soon())
    with pytest.raises(ConnectionError):  # and it hangs up
        frames.recv_exact(client._sock, 1, soon())
    client.close()


def test_more_than_there_is_room_for():
    with DriverListener("127.0.0.1", None, SECRET, lambda progress: None, max_bytes=100) as listener:
        with connect(listener) as client, pytest.raises(GangError):
            client.send_tensors({"w": torch.ones(26)})
        with pytest.raises(GangError, match="104 bytes"):
            listener.tensors(soon())


def test_unknown_message(listener):
    client = connect(listener)
    send_frame(client._sock, {"type": "coffee"}, 100, soon())
    with pytest.raises(ProtocolError, match="coffee"):
        listener.tensors(soon())
    client.close()


def test_after_a_tensor_that_cannot_be_sent(listener):
    with connect(listener) as client:
        with pytest.raises(ModelError, match="'w'"):
            client.send_tensors({"w": torch.eye(2).to_sparse()})
        client.send_tensors({"v": torch.ones(1)})  # nothing had gone out
    assert list(listener.tensors(soon())) == ["v"]


def test_wrong_secret_and_garbage_leave_the_place_free(listener):
    with pytest.raises(AuthenticationError):
        DriverClient.connect(listener.address, b"x" * 32, "e/0", SECONDS)
    with socket.create_connection(listener.address, SECONDS) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert hangs_up(sock)
    with connect(listener) as client:
        client.send_tensors({"w": torch.ones(1)})
    assert listener.tensors(soon())


def test_one_connection_per_attempt(listener):
    with connect(listener) as client:
        with pytest.raises(GangError, match="turned"):
            connect(listener)
        with pytest.raises(GangError, match="turned"):
            connect(listener, "e/9")
        client.send_tensors({"w": torch.ones(1)})
    assert listener.tensors(soon())


def test_first_attempt_to_come_is_kept_when_none_was_given(seen):
    with DriverListener("127.0.0.1", None, SECRET, seen.append) as listener:
        with connect(listener, "mine") as client:
            client.send_tensors({})
        with pytest.raises(GangError, match="turned"):
            connect(listener, "other")


def test_where_it_cannot_listen(listener):
    port = listener.address[1]
    for host, ports in (("0.0.0.0", None), ("127.0.0.1", range(port, port + 1))):
        with pytest.raises(ConfError):
            DriverListener(host, ports, SECRET, print)


def test_a_driver_that_executors_reach_by_another_address(seen):
    """By a forwarded port of a NAT, say; here a name stands for it, which rank 0 resolves."""
    with DriverListener("198.51.100.7", None, SECRET, seen.append, attempt="e", bind="127.0.0.1") as listener:
        assert listener.address == ("198.51.100.7", listener._acceptor.address[1])
        assert listener._acceptor.address[0] == "127.0.0.1"
        task = RankTask(spec_of(("localhost", listener.address[1])), SimpleNamespace(partitionId=lambda: 0))
        with closing(task), ExitStack() as stack:
            assert task.connect_driver(stack).progress({"step": 1})
            wait_for(lambda: seen)
        task = RankTask(spec_of(("no-such-host.invalid", 4711)), SimpleNamespace(partitionId=lambda: 0))
        with (
            closing(task),
            ExitStack() as stack,
            pytest.raises(GangError, match=r"driver\.host.* spark\.driver\.bindAddr"),
        ):
            task.connect_driver(stack)


def spec_of(driver_address):
    conf = CommConf.from_mapping({}, timeout="20s", logs=False)
    return SimpleNamespace(driver_address=driver_address, secret=SECRET, attempt_id="e", conf=conf)


def test_an_address_in_brackets(seen):
    with DriverListener("[::1]", None, SECRET, seen.append, attempt="e") as listener:
        assert listener.address[0] == "::1"
        with connect(listener, "e") as client:
            assert client.progress({"step": 1})
            wait_for(lambda: seen)


def test_close_ends_the_threads(seen):
    listener = DriverListener("127.0.0.1", None, SECRET, seen.append)
    client = connect(listener)
    listener.close()
    listener.close()
    client.close()
    client.close()
    names = ("sparkdl-driver", "sparkdl-handshake")
    assert wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name in names])


def test_rank_0_learns_that_the_driver_is_gone(listener):
    gone = threading.Event()
    with connect(listener) as client:
        client.on_gone(gone.set)
        client.send_tensors({"w": torch.ones(1)})
        assert not gone.wait(0.2)
        listener.close()
        assert gone.wait(SECONDS)


def test_a_client_that_closes_is_not_told_that_the_driver_is_gone(listener):
    gone = threading.Event()
    client = connect(listener)
    client.on_gone(gone.set)
    client.close()
    client.close()
    assert not gone.wait(0.2)
    with pytest.raises(GangError, match="without having sent"):
        listener.tensors(soon())
