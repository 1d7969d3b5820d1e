"""Pacing, and what a sender and a receiver make of a transfer, by a clock that tests move."""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
import weakref
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.errors import GangError, InputError, ProtocolError
from sparkdl_comm.fabric import transport as receiving
from sparkdl_comm.fabric.core.messages import Piece
from sparkdl_comm.fabric.protocol import Expect, Kind
from sparkdl_comm.fabric.sender import CHUNK_BYTES, OutgoingTransfer, Pacing, Sender
from sparkdl_comm.fabric.transport import HEADER_BYTES, Arrival, Header, Receiver
from sparkdl_comm.gang.frames import count_unacknowledged_bytes

SECONDS = 20.0
counts = st.integers(0, 2**32 - 1)
signed = st.integers(-(2**63), 2**63 - 1)
words = st.integers(0, 2**64 - 1)


@st.composite
def schedules(draw: Any) -> list[Piece]:
    end, slices = 0.0, []
    for _ in range(draw(st.integers(0, 5))):
        start = end + draw(st.floats(0, 2))
        end = start + draw(st.floats(0.01, 2))
        slices.append(Piece(start, end, draw(st.floats(0, 1e6))))
    return slices


def allowed_bytes(slices: list[Piece], elapsed: float) -> float:
    """Return how many bytes may have left so many seconds after a schedule began."""
    if elapsed >= (slices[-1].end if slices else 0.0):
        return math.inf
    return sum(each.rate * max(0.0, min(elapsed, each.end) - each.start) for each in slices)


@given(schedules(), st.floats(0, 100), st.floats(0, 15), st.floats(0, 5e6))
def test_pacing(slices: list[Piece], begin: float, after: float, count: float) -> None:
    pacing = Pacing(slices, begin)
    end = begin + (slices[-1].end if slices else 0.0)
    when = pacing.earliest_time(count)
    assert begin <= when <= end
    if when < end:
        assert allowed_bytes(slices, when - begin) == pytest.approx(count, rel=1e-6, abs=1e-3)
    assert pacing.earliest_time(min(count, allowed_bytes(slices, after))) <= max(begin + after, when) + 1e-6


@pytest.mark.parametrize("slices", [[(1, 0, 5)], [(0, 2, 5), (1, 3, 5)], [(0, 1, -1)], [(0, math.nan, 1)]])
def test_refuses_slices_that_are_none(slices: list[Any]) -> None:
    with pytest.raises(InputError, match="invalid Piece"):
        Pacing([Piece(*each) for each in slices], 0.0)


@given(st.sampled_from(Kind), words, signed, st.floats(allow_nan=False), counts, words, words, st.binary(max_size=99))
def test_header(
    kind: Kind, number: int, base: int, norm: float, count: int, offset: int, size: int, data: bytes
) -> None:
    header = Header(kind, number, base, norm, count, offset, size, 7)
    packed = header.pack(memoryview(data))
    assert len(packed) == HEADER_BYTES
    assert Header.unpack(packed) == (header, zlib.crc32(data))


def test_refuses_a_kind_that_there_is_not() -> None:
    fields = b"\x4d" + bytes(HEADER_BYTES - 9)
    with pytest.raises(ProtocolError, match="kind 77"):
        Header.unpack(fields + struct.pack("!II", zlib.crc32(fields), 0))


@given(st.integers(0, HEADER_BYTES - 5), st.integers(1, 255))
def test_refuses_a_damaged_header(place: int, flipped: int) -> None:
    packed = bytearray(Header(Kind.UPDATE, 5, 3, 1.0, 1).pack(memoryview(b"")))
    packed[place] ^= flipped
    with pytest.raises(ProtocolError, match="checksum of a message header"):
        Header.unpack(bytes(packed))


class Wires:
    """A sender and a receiver, connected by socket pairs, and the sender's virtual clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.arrived: list[Arrival] = []
        self.event = threading.Event()
        self.refused: list[GangError] = []
        self.receiver = Receiver(self._take, self.refused.append, SECONDS)
        self.sender = Sender(self._dial, 1e9, lambda: self.now, self._pause)
        self.left: list[tuple[float, float]] = []

    def _take(self, arrival: Arrival) -> None:
        self.arrived.append(arrival)
        self.event.set()

    def _dial(self, address: Any, rail: int, deadline: float) -> socket.socket:
        if address[0] == "gone":
            raise ConnectionRefusedError("nobody there")
        ours, theirs = _tcp_pair()
        threading.Thread(target=self.receiver.serve, args=(theirs, 1), daemon=True).start()
        return ours

    def _pause(self, event: threading.Event, seconds: float) -> None:
        for transfer in self.sender.take_active():
            self.left.append((self.now, transfer.progress.sent_bytes))
        self.now += seconds

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


def outgoing(values: np.ndarray, pacing: Pacing, rails: int = 1, host: str = "there") -> OutgoingTransfer:
    header = Header(Kind.UPDATE, 5, 3, 1.0, 1)
    return OutgoingTransfer(header, values.view(np.uint8).data, [(host, rail) for rail in range(rails)], pacing)


def test_leaves_as_scheduled() -> None:
    wires = Wires()
    values = np.arange(1_000_000, dtype=np.float32)
    slices = [Piece(1.0, 2.0, 1e6), Piece(3.0, 4.5, 2e6)]
    wires.receiver.expect(Expect(5, len(values)))
    wires.sender.send(outgoing(values, Pacing(slices, 0.0)))
    assert wires.event.wait(SECONDS)
    np.testing.assert_array_equal(wires.arrived[0].values, values)
    assert wires.arrived[0].header.base_version == 3
    assert 4.5 - 3 * CHUNK_BYTES / 2e6 < wires.now <= 4.5 + 0.05
    # In real time, so that it may be less; the last bytes are sent when all before them have been.
    assert all(sent <= allowed_bytes(slices, when) + CHUNK_BYTES for when, sent in wires.left)
    wires.close()


@pytest.mark.parametrize("rails", [1, 2])
def test_counts_what_is_on_its_way_when_the_kernel_has_taken_all(rails: int) -> None:
    """A receiver that reads late: the last bytes are in the sender's kernel for a while."""
    wires = Wires()
    late: list[threading.Timer] = []

    def dial(address: Any, rail: int, deadline: float) -> socket.socket:
        ours, theirs = _tcp_pair()
        late.append(threading.Timer(0.1, wires.receiver.serve, args=(theirs, 1)))
        late[-1].daemon = True
        late[-1].start()
        return ours

    sender = Sender(dial, SECONDS)
    values = np.zeros(1_500_000, np.float32)
    wires.receiver.expect(Expect(5, len(values)))
    transfer = outgoing(values, Pacing([], 0.0), rails)
    sender.send(transfer)
    assert transfer.progress.sent_bytes == values.nbytes
    assert transfer.progress.held_seconds > 0
    assert wires.event.wait(SECONDS)
    sender.close()
    wires.close()


@pytest.mark.parametrize("rails", [1, 2, 3])
@pytest.mark.parametrize("elements", [0, 1, 7, 100_000])
def test_all_rails(rails: int, elements: int) -> None:
    wires = Wires()
    values = np.random.default_rng(0).normal(size=elements).astype(np.float32)
    wires.receiver.expect(Expect(5, elements))
    wires.sender.send(outgoing(values, Pacing([], 0.0), rails))
    assert wires.event.wait(SECONDS)
    np.testing.assert_array_equal(wires.arrived[0].values, values)
    wires.close()


@pytest.mark.parametrize(("elements", "rails"), [(0, [0]), (1, [2]), (2, [1, 2])])
def test_rails_that_have_nothing_to_take(elements: int, rails: list[int]) -> None:
    """Nothing is sent over them: it could come when the transfer is complete, and nobody expects it any more."""
    wires = Wires()
    dialled: list[int] = []

    def dial(address: Any, rail: int, deadline: float) -> socket.socket:
        dialled.append(rail)
        return wires._dial(address, rail, deadline)

    sender = Sender(dial, SECONDS)
    wires.receiver.expect(Expect(5, elements))
    sender.send(outgoing(np.ones(elements, np.float32), Pacing([], 0.0), 3))
    assert wires.event.wait(SECONDS)
    assert sorted(dialled) == rails
    sender.close()
    wires.close()


def test_the_bytes_of_what_was_sent_are_not_kept() -> None:
    """Nobody may ask for the transfers that have ended."""
    wires = Wires()
    values = np.ones(100, np.float32)
    kept = weakref.ref(values)
    wires.receiver.expect(Expect(5, len(values)))
    wires.sender.send(outgoing(values, Pacing([], 0.0)))
    del values
    assert kept() is None
    assert [transfer.progress.sent_bytes for transfer in wires.sender.take_active()] == [400]
    wires.close()


def test_a_sender_is_closed_while_it_waits_for_a_receiver_that_takes_nothing() -> None:
    ours, theirs = _tcp_pair()
    sender = Sender(lambda address, rail, deadline: ours, 10 * SECONDS)
    transfer = outgoing(np.zeros(10**7, np.float32), Pacing([], 0.0))
    errors: list[GangError] = []

    def send() -> None:
        try:
            sender.send(transfer)
        except GangError as exc:
            errors.append(exc)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    held, until = 0, time.monotonic() + SECONDS
    while (held == 0 or held != count_unacknowledged_bytes(ours)) and time.monotonic() < until:
        held = count_unacknowledged_bytes(ours)
        time.sleep(0.2)
    sender.close()
    sending.join(SECONDS)
    assert errors
    theirs.close()


def test_may_come_before_it_is_expected() -> None:
    wires = Wires()
    values = np.ones(10, np.float32)
    wires.sender.send(outgoing(values, Pacing([], 0.0)))
    wires.receiver.expect(Expect(5, 10))
    assert wires.event.wait(SECONDS)
    wires.close()


def test_cancelled_before_it_began() -> None:
    wires = Wires()
    transfer = outgoing(np.ones(10, np.float32), Pacing([Piece(5.0, 6.0, 1e6)], 0.0))
    transfer.cancelled.set()
    wires.sender.send(transfer)
    assert wires.now == 0.0
    assert not wires.left
    wires.close()


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("fenced", [False, True])
def test_cancelled_on_its_way(begun: bool, fenced: bool) -> None:
    """Its bytes are read, so that the connection brings what comes next."""
    wires = Wires()
    wires.receiver.expect(Expect(5, 10))
    ours, theirs = _tcp_pair()
    threading.Thread(target=wires.receiver.serve, args=(theirs, 1), daemon=True).start()
    first, second = (memoryview(np.full(10, value, np.float32)).cast("B") for value in (1.0, 2.0))
    message = Header(Kind.UPDATE, 5, length=40).pack(first) + first
    cut = HEADER_BYTES + 8 if begun else 0
    ours.send(message[:cut])
    if fenced:
        wires.receiver.fence([5], "a worker")
    else:
        wires.receiver.cancel(5)
    wires.receiver.expect(Expect(6, 10))
    ours.send(message[cut:] + Header(Kind.UPDATE, 6, length=40).pack(second) + second)
    assert wires.event.wait(SECONDS)
    assert [arrival.expected.transfer for arrival in wires.arrived] == [6]
    np.testing.assert_array_equal(wires.arrived[0].values, 2.0)
    ours.close()
    wires.close()


@pytest.mark.parametrize(
    ("header", "expect"),
    [
        (Header(Kind.UPDATE, 5, length=44), Expect(5, 10)),
        (Header(Kind.UPDATE, 5, offset=4, length=40), Expect(5, 10)),
        (Header(Kind.UPDATE, 5, offset=2, length=4), Expect(5, 10)),
        (Header(Kind.MODEL, 5, length=40), Expect(5, 10)),
        (Header(Kind.UPDATE, 5, length=2**62), Expect(5, 10)),
        (Header(Kind.UPDATE, 5, length=40), Expect(5, 10)),  # the checksum is of other bytes
    ],
)
def test_refuses_what_is_not_as_announced(header: Header, expect: Expect) -> None:
    wires = Wires()
    wires.receiver.expect(expect)
    ours, theirs = _tcp_pair()
    thread = threading.Thread(target=wires.receiver.serve, args=(theirs, 1), daemon=True)
    thread.start()
    ours.send(header.pack(memoryview(b"")) + bytes(40))
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert not wires.arrived
    [refusal] = wires.refused
    assert isinstance(refusal, ProtocolError)
    assert refusal.rank == 1
    assert f"refused data from rank 1: {header.description}" in refusal.message
    ours.close()
    wires.close()


@pytest.mark.parametrize("sender", ["is there", "is lost", "is lost soon"])
def test_a_message_that_is_broken_off(sender: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler says whether its sender is lost."""
    monkeypatch.setattr(receiving, "_SETTLED_SECONDS", 0.05 if sender == "is there" else SECONDS)
    wires = Wires()
    wires.receiver.expect(Expect(5, 10))
    ours, theirs = _tcp_pair()
    thread = threading.Thread(target=wires.receiver.serve, args=(theirs, 1), daemon=True)
    thread.start()
    ours.send(Header(Kind.UPDATE, 5, 3, 1.0, 1, length=40).pack(memoryview(bytes(40))) + bytes(8))
    if sender == "is lost":
        wires.receiver.fence([5], "a worker")
    ours.close()
    if sender == "is lost soon":
        thread.join(0.05)
        wires.receiver.fence([5], "a worker")
    thread.join(SECONDS)
    assert not thread.is_alive()
    words = [error.message for error in wires.refused]
    assert len(words) == (sender == "is there")
    assert all("rank 1 sent only part of transfer 5 (1 update(s), version 3)" in each for each in words)
    wires.close()


def test_a_receiver_that_is_gone() -> None:
    wires = Wires()
    with pytest.raises(GangError, match="transfer 5 to gone:0 over rail 0: nobody there"):
        wires.sender.send(outgoing(np.ones(10, np.float32), Pacing([], 0.0), host="gone"))
    wires.close()
    with pytest.raises(GangError, match="closed"):
        wires.sender.send(outgoing(np.ones(10, np.float32), Pacing([], 0.0)))
