"""The network monitor, by counters and a clock that tests set; and those of this host."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.fabric import monitor as counters_of_nics
from sparkdl_comm.fabric.monitor import ByteCounts, InterfaceCounters, Monitor
from sparkdl_comm.fabric.protocol import Flow, Kind, Rates
from sparkdl_comm.fabric.sender import OutgoingTransfer, Pacing
from sparkdl_comm.fabric.transport import Header
from tests.unit.gang_helpers import SECONDS


class ByteCounters:
    speed = 125e6

    def __init__(self) -> None:
        self.counted = ByteCounts(1000, 2000)

    def read(self) -> ByteCounts:
        return self.counted


def outgoing(number: int, size: int = 600) -> OutgoingTransfer:
    return OutgoingTransfer(Header(Kind.UPDATE, number), memoryview(bytes(size)), [("a", 1), ("b", 1)], Pacing([], 0.0))


steps = st.tuples(
    st.floats(0.01, 1.0),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.one_of(st.just(0), st.integers(16 * 1024, 10**6)),
)


@given(st.lists(steps, min_size=1, max_size=8))
@pytest.mark.slow
def test_says_what_has_changed(trace: list[tuple[float, int, int, int]]) -> None:
    now, counters, transfer = [5.0], ByteCounters(), outgoing(7, 10**7)
    monitor = Monitor(counters, lambda: [transfer], lambda rates: None, lambda: now[0])
    total = 0
    for seconds, up, down, sent in trace:
        begin = now[0]
        now[0] += seconds
        counters.counted = ByteCounts(counters.counted.up + up, counters.counted.down + down)
        total += sent
        if sent:
            # Both rails had bytes that were due for half of the time.
            transfer.record(sent, begin + seconds / 2, now[0])
            transfer.record(0, begin + seconds / 2, now[0])
        rates = monitor.measure()
        assert abs(rates.seconds - seconds) < 1e-9
        assert (rates.up, rates.down, rates.speed) == (up, down, 125e6)
        if not sent:
            assert rates.flows == []
            continue
        [flow] = rates.flows
        assert (flow.transfer, flow.sent, flow.total) == (7, sent, total)
        assert 0 < flow.seconds <= now[0] - 5.0 + 1e-9
        assert abs(flow.held * flow.seconds - seconds / 2) < 1e-6


def test_a_few_bytes_are_told_with_those_that_follow_or_when_they_are_the_last() -> None:
    now, transfer = [0.0], outgoing(1, 40_000)
    monitor = Monitor(ByteCounters(), lambda: [transfer], lambda rates: None, lambda: now[0])
    told = []
    for seconds, sent in ((0.1, 1448), (0.2, 14_936), (0.3, 10_000), (0.4, 13_616)):
        transfer.record(sent, now[0], seconds)
        now[0] = seconds
        told.append([(flow.sent, flow.total, round(flow.seconds, 6)) for flow in monitor.measure().flows])
    assert told == [[], [(16_384, 16_384, 0.2)], [], [(23_616, 40_000, 0.2)]]


def test_a_transfer_that_is_over_before_anybody_looks() -> None:
    now, transfer = [0.0], outgoing(1)
    ended = [transfer]
    monitor = Monitor(ByteCounters(), lambda: [ended.pop()] if ended else [], lambda rates: None, lambda: now[0])
    transfer.record(600, 0.02, 0.05)
    now[0] = 0.1
    assert monitor.measure().flows == [Flow(1, 0.05 - 0.02, 600, 0.5, 600, 0.1 - 0.05)]
    now[0] = 0.2
    assert monitor.measure().flows == []


def test_reports_by_itself_and_is_quiet_when_nothing_moves() -> None:
    heard: list[Rates] = []
    came, counters = threading.Event(), ByteCounters()

    def hear(rates: Rates) -> None:
        heard.append(rates)
        came.set()

    monitor = Monitor(counters, list, hear)
    counters.counted = ByteCounts(1500, 2000)
    monitor.start()
    assert came.wait(SECONDS)
    monitor.close()
    assert heard[0].up == 500
    assert all(rates.up == 0 for rates in heard[1:])
    assert len(heard) <= 2


def test_counters_of_this_host() -> None:
    counters = InterfaceCounters(["127.0.0.1"])
    before = counters.read()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            ours.sendall(bytes(5000))
            assert len(theirs.recv(5000, socket.MSG_WAITALL)) == 5000
    after = counters.read()
    assert after.up - before.up >= 5000
    assert after.down - before.down >= 5000
    assert InterfaceCounters(["127.0.0.1", "127.0.0.1"]).read().up >= after.up
    assert InterfaceCounters(["192.0.2.1"]).read() == ByteCounts(0, 0)


def test_a_nic_that_vanishes_and_comes_back(tmp_path, monkeypatch) -> None:
    """The counters of a removed NIC stand still. After its return they start from 0, and no traffic is negative."""

    def count(nic: str, sent: int) -> None:
        (tmp_path / nic / "statistics").mkdir(parents=True, exist_ok=True)
        for name in ("tx_bytes", "rx_bytes"):
            (tmp_path / nic / "statistics" / name).write_text(f"{sent}\n")

    monkeypatch.setattr(counters_of_nics, "_STATISTICS", tmp_path)
    counters = InterfaceCounters([])
    counters._nics = ["a", "b"]
    count("a", 100)
    count("b", 1000)
    monitor = Monitor(counters, list, lambda rates: None)
    shutil.rmtree(tmp_path / "b")
    count("a", 130)
    assert monitor.measure().up == 30
    count("b", 5)
    assert monitor.measure().up == 0
    count("b", 25)
    assert monitor.measure().up == 20


def test_an_aggregator_needs_no_torch() -> None:
    """It starts with each rank, and torch takes seconds and hundreds of MB."""
    code = "import sys, sparkdl_comm.fabric.process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
