"""The connection of rank 0 to the driver: who may connect and where, and what one side learns when the other is gone."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import AuthenticationError, ConfError, DeadlineError, GangError, RankLostError
from sparkdl_comm.gang import frames
from sparkdl_comm.gang.frames import encode_frame, send_frame
from sparkdl_comm.gang.tensors import describe
from sparkdl_comm.job import driver_client, driver_listener
from sparkdl_comm.job.driver_client import DriverClient
from sparkdl_comm.job.driver_listener import DriverListener
from sparkdl_comm.job.task import RankTask
from tests.unit.driver_helpers import connect, soon
from tests.unit.gang_helpers import SECONDS, SECRET, hangs_up, wait_for


@pytest.fixture
def seen():
    return []


@pytest.fixture
def listener(seen):
    with DriverListener("127.0.0.1", None, SECRET, seen.append, attempt="e/0") as listener:
        yield listener


def test_driver_vanishes(seen):
    listener = DriverListener("127.0.0.1", None, SECRET, seen.append)
    with connect(listener) as client:
        assert client.send_progress({"step": 0})
        assert wait_for(lambda: seen)
        listener.close()
        assert wait_for(lambda: not client.send_progress({"step": 1}))
        assert client.send_progress({"step": 2}) is False
        with pytest.raises(GangError, match="driver"):
            client.send_tensors({"w": torch.ones(2)})
    with pytest.raises(GangError, match="closed"):
        listener.wait_for_tensors(soon())


def test_driver_vanishes_while_tensors_travel(seen):
    block = threading.Event()
    listener = DriverListener("127.0.0.1", None, SECRET, lambda progress: block.wait(SECONDS))
    with connect(listener) as client:
        client.send_progress({})  # the listener reads nothing more
        threading.Timer(0.3, lambda: (listener.close(), block.set())).start()
        with pytest.raises(GangError, match="driver"):
            client.send_tensors({"w": torch.ones(32 << 20)})


def test_driver_that_stands_still():
    block = threading.Event()
    with DriverListener("127.0.0.1", None, SECRET, lambda progress: block.wait(SECONDS)) as listener:
        with connect(listener, stall_seconds=0.3) as client:
            client.send_progress({})
            with pytest.raises(DeadlineError, match="driver"):
                client.send_tensors({"w": torch.ones(32 << 20)})
        block.set()


def test_rank_0_vanishes(listener):
    client = connect(listener)
    client._sock.close()
    with pytest.raises(RankLostError) as caught:
        listener.wait_for_tensors(soon())
    assert caught.value.rank == 0


def test_rank_0_vanishes_in_the_middle_of_a_tensor(listener):
    client = connect(listener)
    header = {"type": "tensors", **describe({"w": torch.ones(1000)})}
    send_frame(client._sock, header, 1 << 20, soon())
    frames.send_all(client._sock, bytes(100), soon())
    client._sock.close()
    with pytest.raises(RankLostError):
        listener.wait_for_tensors(soon())


def test_rank_0_closes_without_a_model(listener):
    connect(listener).close()
    with pytest.raises(GangError, match="without sending"):
        listener.wait_for_tensors(soon())


def test_deadline_of_tensors(listener):
    with pytest.raises(DeadlineError, match="e/0 did not connect"):
        listener.wait_for_tensors(soon(0.1))
    with connect(listener), pytest.raises(DeadlineError, match="e/0 sent no model"):
        listener.wait_for_tensors(soon(0.1))


def test_wrong_secret_and_garbage_leave_the_place_free(listener):
    with pytest.raises(AuthenticationError):
        DriverClient.connect(listener.address, b"x" * 32, "e/0", SECONDS)
    with socket.create_connection(listener.address, SECONDS) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert hangs_up(sock)
    with connect(listener) as client:
        client.send_tensors({"w": torch.ones(1)})
    assert listener.wait_for_tensors(soon())


def test_one_connection_per_attempt(listener):
    with connect(listener) as client:
        with pytest.raises(GangError, match="refused"):
            connect(listener)
        with pytest.raises(GangError, match="refused"):
            connect(listener, "e/9")
        client.send_tensors({"w": torch.ones(1)})
    assert listener.wait_for_tensors(soon())


def test_first_attempt_to_come_is_kept_when_none_was_given(seen):
    with DriverListener("127.0.0.1", None, SECRET, seen.append) as listener:
        with connect(listener, "mine") as client:
            client.send_tensors({})
        with pytest.raises(GangError, match="refused"):
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
            assert task.connect_driver(stack).send_progress({"step": 1})
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
            assert client.send_progress({"step": 1})
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
        client.watch_driver(gone.set)
        client.send_tensors({"w": torch.ones(1)})
        assert not gone.wait(0.2)
        listener.close()
        assert gone.wait(SECONDS)


def test_a_client_that_closes_is_not_told_that_the_driver_is_gone(listener):
    gone = threading.Event()
    client = connect(listener)
    client.watch_driver(gone.set)
    client.close()
    client.close()
    assert not gone.wait(0.2)
    with pytest.raises(GangError, match="without sending"):
        listener.wait_for_tensors(soon())


@pytest.fixture
def late():
    """Seconds by which the listener's clock is fast, and the listener."""
    clock = SimpleNamespace(seconds=0.0)
    with DriverListener(
        "127.0.0.1", None, SECRET, print, attempt="e/0", timeout=5.0, clock=lambda: time.monotonic() + clock.seconds
    ) as listener:
        yield clock, listener


def test_rank_0_that_is_silent(late):
    clock, listener = late
    listener.check()
    with connect(listener):
        assert wait_for(lambda: listener._silent_since is not None)
        clock.seconds += 10.0
        listener.check()
        clock.seconds += 6.0
        with pytest.raises(RankLostError, match=r"rank 0 has sent nothing for \d+ s"):
            listener.check()


def test_rank_0_that_stops_in_a_message(listener, monkeypatch):
    monkeypatch.setattr(driver_listener, "STALL_SECONDS", 0.1)
    with connect(listener) as client:
        client._sock.send(encode_frame({"type": "bye"}, 64)[:6])
        with pytest.raises(DeadlineError, match="deadline passed"):
            listener.wait_for_tensors(soon())


def test_rank_0_that_computes(late, monkeypatch):
    clock, listener = late
    monkeypatch.setattr(driver_client, "HEARTBEAT_SECONDS", 0.02)
    with connect(listener) as client:
        client.watch_driver(lambda: None)
        for _ in range(3):
            clock.seconds += 10.0
            known = (None, listener._silent_since)
            assert wait_for(lambda known=known: listener._silent_since not in known), "there are no heartbeats"
            listener.check()
    with pytest.raises(GangError, match="without sending"):
        listener.wait_for_tensors(soon() + clock.seconds)
    clock.seconds += 60.0
    listener.check()  # it said goodbye, and the others may take their time


def test_ranks_that_have_left_must_end(late):
    clock, listener = late
    with connect(listener) as client:
        client.report_all_left()
    assert wait_for(lambda: listener._ending is not None)
    listener.check()
    clock.seconds += 6.0
    with pytest.raises(RankLostError, match="5 s .* after all had left the gang"):
        listener.check()


def test_ranks_must_end_when_the_connection_of_rank_0_has_broken(late):
    clock, listener = late
    with connect(listener) as client:
        client._sock.close()
        with pytest.raises(RankLostError):
            listener.wait_for_tensors(soon())
        listener.check()
        clock.seconds += 6.0
        with pytest.raises(RankLostError, match="5 s .* after rank 0's connection to the driver broke"):
            listener.check()
