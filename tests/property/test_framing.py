from __future__ import annotations

import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.errors import GangError
from sparkdl_comm.gang.frames import FrameBuffer, encode_frame, recv_frame, send_frame

MAXIMUM = 1 << 20
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
frames = st.dictionaries(st.text(), values, max_size=5)


@given(st.lists(frames, max_size=5), st.data())
def test_buffer_gives_the_same_frames_however_the_stream_is_cut(sent, data) -> None:
    stream = b"".join(encode_frame(frame, MAXIMUM) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    buffer = FrameBuffer(MAXIMUM)
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += buffer.feed(stream[start:end])
    assert got == sent


@given(st.lists(frames, max_size=5))
def test_socket_round_trip(sent) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        deadline = time.monotonic() + 20

        def send() -> None:
            for frame in sent:
                send_frame(left, frame, MAXIMUM, deadline)

        thread = threading.Thread(target=send)
        thread.start()
        got = [recv_frame(right, MAXIMUM, deadline) for _ in sent]
        thread.join(20)
    assert got == sent


@given(st.binary(max_size=64))
def test_any_bytes_give_frames_or_a_typed_error(data: bytes) -> None:
    buffer = FrameBuffer(32)
    try:
        got = buffer.feed(data)
    except GangError:
        return
    assert all(isinstance(frame, dict) for frame in got)


@given(st.integers(1, 2**32 - 1), st.binary(max_size=8))
def test_too_long_is_refused_whatever_follows(size: int, rest: bytes) -> None:
    with pytest.raises(GangError):
        FrameBuffer(size - 1).feed(size.to_bytes(4, "big") + bytes(4) + rest)
