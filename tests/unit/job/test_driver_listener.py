"""What rank 0 tells the driver: progress, printed lines, why the gang failed, and the tensors of the model."""

from __future__ import annotations

import socket
import threading

import pytest
import torch

from sparkdl_comm.errors import GangError, InputError, ModelError, ProtocolError
from sparkdl_comm.gang import frames
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.frames import send_frame
from sparkdl_comm.gang.tensors import DTYPES, raw
from sparkdl_comm.job.driver_listener import DriverListener
from tests.unit.driver_helpers import connect, soon
from tests.unit.gang_helpers import SECONDS, SECRET, wait_for


@pytest.fixture
def seen():
    return []


@pytest.fixture
def listener(seen):
    with DriverListener("127.0.0.1", None, SECRET, seen.append, attempt="e/0") as listener:
        yield listener


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
    got = listener.wait_for_tensors(soon())
    assert list(got) == list(sent)
    for name in sent:
        assert same(got[name], sent[name]), name
    assert listener.wait_for_tensors(soon(0)) is got  # again, after rank 0 has closed


def test_large_tensors(listener):
    big = torch.arange(24 << 20, dtype=torch.int32)  # 96 MiB
    odd = torch.arange(1 << 20, dtype=torch.int16)[1:]
    with connect(listener) as client:
        client.send_tensors({"big": big, "odd": odd})
    got = listener.wait_for_tensors(soon())
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
    with connect(listener) as client, pytest.raises(GangError, match="disconnected, or refused"):
        client.send_tensors({"w": torch.ones(1024)})
    with pytest.raises(GangError, match="CRC-32"):
        listener.wait_for_tensors(soon())


def test_progress_arrives_in_order_before_the_tensors(listener, seen):
    with connect(listener) as client:
        for step in range(50):
            assert client.send_progress({"step": step, "loss": float("nan") if step == 49 else 0.5})
        client.send_tensors({"w": torch.ones(2)})
    listener.wait_for_tensors(soon())
    assert [progress["step"] for progress in seen] == list(range(50))
    assert seen[49]["loss"] != seen[49]["loss"]


def test_printed_lines():
    seen = []
    with DriverListener("127.0.0.1", None, SECRET, seen.append, on_log=lambda *log: seen.append(log)) as listener:
        with connect(listener) as client:
            assert client.send_lines(["one", "t\u00fco"], 0)
            client.send_tensors({})
            assert client.send_lines([1000 * "\U0001f600"] * 100, 7)
        wait_for(lambda: len(seen) == 2)
    assert seen == [(["one", "t\u00fco"], 0), ([1000 * "\U0001f600"] * 100, 7)]


def test_why_the_gang_failed():
    failure = Failure(1, 7, "forward", "KeyError", "x" * 5000, "Traceback ...", log="one\ntwo")
    with DriverListener("127.0.0.1", None, SECRET, print, attempt="e/0") as listener:
        assert listener.wait_for_failure(soon(0)) is None
        with connect(listener) as client:
            client.report_failure(failure)
            assert listener.wait_for_failure(soon()) == failure


def test_progress_that_is_no_json(listener):
    with connect(listener) as client:
        with pytest.raises(InputError):
            client.send_progress({"x": b""})
        with pytest.raises(InputError):
            client.send_progress({"x": "y" * (64 << 10)})
        client.send_tensors({})


def test_on_progress_that_raises_does_not_stop_the_model():
    def broken(progress: dict) -> None:
        raise RuntimeError("a bug of the progress bar")

    with DriverListener("127.0.0.1", None, SECRET, broken) as listener, connect(listener) as client:
        client.send_progress({})
        client.send_tensors({"w": torch.ones(2)})
        assert torch.equal(listener.wait_for_tensors(soon())["w"], torch.ones(2))


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
            if client.send_progress({"step": step, "text": "x" * 60_000}):
                sent.append(step)
        assert len(sent) < 1000
        go_on.set()
        client.send_tensors({"w": torch.ones(2)})  # what was cut in the middle goes out whole before it
        listener.wait_for_tensors(soon())
        assert seen == sent


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
        listener.wait_for_tensors(soon())
    with pytest.raises(ConnectionError):  # and it hangs up
        frames.recv_exact(client._sock, 1, soon())
    client.close()


def test_more_than_there_is_room_for():
    with DriverListener("127.0.0.1", None, SECRET, lambda progress: None, max_bytes=100) as listener:
        with connect(listener) as client, pytest.raises(GangError):
            client.send_tensors({"w": torch.ones(26)})
        with pytest.raises(GangError, match="104 bytes"):
            listener.wait_for_tensors(soon())


def test_unknown_message(listener):
    client = connect(listener)
    send_frame(client._sock, {"type": "coffee"}, 100, soon())
    with pytest.raises(ProtocolError, match="coffee"):
        listener.wait_for_tensors(soon())
    client.close()


def test_after_a_tensor_that_cannot_be_sent(listener):
    with connect(listener) as client:
        with pytest.raises(ModelError, match="'w'"):
            client.send_tensors({"w": torch.eye(2).to_sparse()})
        client.send_tensors({"v": torch.ones(1)})  # nothing had gone out
    assert list(listener.wait_for_tensors(soon())) == ["v"]
