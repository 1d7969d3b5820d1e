from __future__ import annotations

import functools
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from sparkdl_comm.errors import DeadlineError, GangError, InputError, RankFailedError, RankLostError
from sparkdl_comm.gang.exchange import decide_json, gather_tensors
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.frames import encode_frame, recv_frame, send_frame
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.key_value_store import MAX_VALUE, KeyValueStore
from sparkdl_comm.gang.store import StoreService
from tests.unit.gang_helpers import SECONDS, gang_of, hangs_up


@pytest.fixture
def gangs():
    with gang_of(3) as gangs:
        yield gangs


def later(call) -> tuple[threading.Thread, list]:
    """Run `call` in a thread; what it returned or raised ends up in the list."""
    result: list = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as exc:  # noqa: BLE001 - looked at by the test
            result.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, result


@pytest.mark.parametrize("rank", [0, 1], ids=["where the table is", "elsewhere"])
def test_operations(gangs, rank):
    store, other = gangs[rank].store("p"), gangs[2].store("p")
    store.set("k", b"\x00\xff")
    assert other.get("k") == b"\x00\xff"
    store.set("text", "ü")
    assert other.get("text") == "ü".encode()
    assert store.add("n", 2) == 2
    assert other.add("n", 3) == 5
    assert store.get("n") == b"5"
    assert store.check(["k", "n"])
    assert not store.check(["k", "absent"])
    assert store.num_keys() == 3
    assert store.delete_key("text")
    assert not store.delete_key("text")
    assert other.num_keys() == 2
    store.append("k", b"more")
    assert other.multi_get(["n", "k"]) == [b"5", b"\x00\xffmore"]
    store.multi_set(["a", "b"], [b"1", "2"])
    assert other.multi_get(["a", "b"]) == [b"1", b"2"]
    store.wait(["a", "b"])
    assert store.get("a") == b"1"


def test_compare_set_is_that_of_tcp_store(gangs):
    tcp = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    for store in (tcp, gangs[1].store("cs")):
        assert store.compare_set("k", "no", "x") == b"no"  # absent, something expected: not made
        assert not store.check(["k"])
        assert store.compare_set("k", "", "first") == b"first"
        assert store.compare_set("k", "no", "x") == b"first"
        assert store.compare_set("k", "first", "second") == b"second"
        assert store.get("k") == b"second"


def test_through_torchs_own_prefix_store(gangs):
    """C++ calls the Python methods, by its own names."""
    store = dist.PrefixStore("outer", gangs[1].store("p"))
    store.set("k", b"\x00v")
    assert store.get("k") == b"\x00v"
    assert store.add("n", 4) == 4
    assert store.num_keys() == 2
    assert store.delete_key("k")
    assert store.compare_set("k", "", "w") == b"w"
    assert store.multi_get(["k", "n"]) == [b"w", b"4"]
    assert gangs[2].store("p").get("outer/k") == b"w"
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(RuntimeError, match="never"):
        store.get("never")


def test_prefixes_are_apart(gangs):
    gangs[0].store("a").set("k", "1")
    assert not gangs[0].store("b").check(["k"])
    assert gangs[1].store("b").num_keys() == 0
    assert gangs[1].store("a").clone().get("k") == b"1"


@pytest.mark.parametrize("rank", [0, 1])
def test_get_waits_until_the_key_is_there(gangs, rank):
    thread, result = later(lambda: gangs[rank].store("p").get("k"))
    thread.join(0.2)
    assert thread.is_alive()
    gangs[2].store("p").set("k", b"v")
    thread.join(SECONDS)
    assert result == [b"v"]


def test_a_blocked_get_blocks_no_other_request_of_the_same_store(gangs):
    store = gangs[1].store("p")
    thread, result = later(lambda: store.get("k"))
    thread.join(0.2)
    assert store.add("n", 1) == 1  # in this thread
    assert thread.is_alive()
    store.set("k", b"v")
    thread.join(SECONDS)
    assert result == [b"v"]


@pytest.mark.parametrize("rank", [0, 1])
def test_timeouts(gangs, rank):
    store = gangs[rank].store("p")
    store.set("there", b"")
    with pytest.raises(DeadlineError, match=r"1 of 2 store keys .*p/absent.*spark\.sparkdl\.comm\.timeout"):
        store.wait(["there", "absent"], timedelta(seconds=0.1))
    store.set_timeout(timedelta(seconds=0.1))
    assert store.timeout == timedelta(seconds=0.1)
    with pytest.raises(RuntimeError):  # what torch catches
        store.get("absent")
    assert store.get("there") == b""  # the connection is as good as before


@pytest.mark.parametrize("rank", [0, 1])
def test_sizes_are_bounded(gangs, rank):
    store = gangs[rank].store("p")
    store.set("most", bytes(MAX_VALUE))
    assert len(store.get("most")) == MAX_VALUE
    with pytest.raises(InputError):
        store.set("more", bytes(MAX_VALUE + 1))
    assert not store.check(["more"])


def test_total_is_bounded(monkeypatch, gangs):
    monkeypatch.setattr("sparkdl_comm.gang.key_value_store.MAX_TOTAL", 1000)
    store = gangs[1].store("p")
    store.set("a", bytes(900))
    with pytest.raises(InputError):
        store.set("b", bytes(101))
    store.set("a", bytes(10))
    store.set("b", bytes(101))
    store.delete_key("b")
    store.set("c", bytes(990))


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"op": "nonsense"},
        {"op": "get", "keys": ["k"]},
        {"op": "set", "keys": ["k"], "values": []},
        {"op": "set", "keys": ["k"], "values": [1]},
        {"op": "gather", "keys": ["k"], "values": [b""], "seconds": 0, "rank": 2},
        {"op": "gather", "keys": ["k"], "values": [], "seconds": 0, "rank": 0},
        {"op": "add", "keys": []},
        {"op": "add", "keys": ["text"], "amount": 1},
        {"op": "set", "keys": 1},
    ],
)
def test_malformed_requests_are_answered(request_):
    store = KeyValueStore(2)
    store.answer({"op": "set", "keys": ["text"], "values": [b"xx"]})
    assert store.answer(request_)["error"] == "ProtocolError"


@pytest.mark.parametrize("rank", [0, 1])
def test_gang_failure_ends_waits(gangs, rank):
    thread, result = later(lambda: gangs[rank].store("p").get("never"))
    thread.join(0.2)
    assert thread.is_alive()
    gangs[2].announce_failure(Failure.of(ValueError("boom"), 2, 1, "backward"))
    thread.join(5)
    assert isinstance(result[0], RankFailedError)
    assert "boom" in str(result[0])
    with pytest.raises(RankFailedError):
        gangs[rank].store("p").add("n", 1)


def test_rank_0_gone(gangs):
    store = gangs[1].store("p")
    store.set("k", "v")
    gangs[0].close()
    with pytest.raises((RankLostError, GangError), match="rank 0|refused"):
        store.get("k")


# ---- torch.distributed


def test_all_gather_gives_every_rank_what_all_gave_in_the_same_turn(gangs):
    for turn in range(3):
        given = [f"{turn}:{gang.rank}".encode() for gang in gangs]
        threads = [later(functools.partial(gang.all_gather, given[gang.rank], SECONDS)) for gang in gangs]
        for thread, result in threads:
            thread.join(SECONDS)
            assert result == [given]
    store = gangs[0]._store._key_values
    assert (store._gatherings, store._total) == ({}, 0), "turns that are over are forgotten"


def test_all_gather_takes_one_trip_and_leaves_nothing(gangs, monkeypatch):
    trips = []
    ask = StoreService.ask
    monkeypatch.setattr(StoreService, "ask", lambda *request: trips.append(request) or ask(*request))
    for _ in range(5):
        for thread, result in [later(functools.partial(gang.all_gather, b"8 bytes.", SECONDS)) for gang in gangs]:
            thread.join(SECONDS)
            assert result == [3 * [b"8 bytes."]]
    assert len(trips) == 5 * 3
    assert [gang._store._stores for gang in gangs] == [[], [], []]


def test_rank_0_decides_in_one_trip(gangs, monkeypatch):
    trips = []
    ask = StoreService.ask
    monkeypatch.setattr(StoreService, "ask", lambda self, *request: trips.append(self._rank) or ask(self, *request))
    given = [[gang.rank, None] for gang in gangs]

    def decide(reports: list) -> dict:
        assert reports == given
        return {"sum": sum(rank for rank, _ in reports)}

    for turn in range(1, 4):
        threads = [later(functools.partial(decide_json, gang, given[gang.rank], decide, SECONDS)) for gang in gangs]
        for thread, result in threads:
            thread.join(SECONDS)
            assert result == [{"sum": 3}]
        assert [trips.count(rank) for rank in (1, 2)] == [turn, turn]
    store = gangs[0]._store._key_values
    assert (store._gatherings, store._total) == ({}, 0), "turns that are over are forgotten"


def test_who_waits_for_a_decision_names_who_is_late(gangs):
    with pytest.raises(DeadlineError, match=r"ranks 1, 2 of 3 .*spark\.sparkdl\.comm\.timeout"):
        decide_json(gangs[0], 1, sum, 0.2)


@pytest.mark.slow
def test_24_ranks_gather_a_mebibyte_each():
    """As BatchNorm's buffers and the states of metrics do."""
    world, seconds = 24, 60.0
    with gang_of(world) as gangs:

        def gather(gang: Gang) -> list[float]:
            mine = torch.full((1 << 18,), float(gang.rank))
            gathered = gather_tensors(gang, [mine, torch.ones(3)], seconds)
            assert all(len(tensors) == 2 and tensors[0].shape == mine.shape for tensors in gathered)
            return [tensors[0].mean().item() for tensors in gathered]

        for thread, result in [later(functools.partial(gather, gang)) for gang in gangs]:
            thread.join(seconds)
            assert result == [[float(rank) for rank in range(world)]]


@pytest.mark.parametrize("sizes", [[MAX_VALUE + 1], [-1], ["1"], "1", [True], 65 * [MAX_VALUE]])
def test_sizes_that_are_none_end_the_connection(gangs, sizes):
    """Rank 0 reads no further: nothing is allocated for them."""
    with gangs[1].dial(0, "store", time.monotonic() + SECONDS) as sock:
        send_frame(sock, {"op": "set", "keys": ["k"], "values": sizes}, 1 << 16, time.monotonic() + SECONDS)
        assert hangs_up(sock)
    gangs[2].store("p").set("k", b"")


def test_a_request_that_stops_halfway_ends_the_connection(gangs, monkeypatch):
    """The rest of it would be read as the next request. Between requests, a client may be silent for longer."""
    monkeypatch.setattr("sparkdl_comm.gang.store.STALL_SECONDS", 0.2)
    with gangs[1].dial(0, "store", time.monotonic() + SECONDS) as sock:
        time.sleep(0.5)
        request = encode_frame({"op": "count", "keys": [""]}, 1 << 16)
        sock.sendall(request)
        assert recv_frame(sock, 1 << 16, time.monotonic() + SECONDS)["values"] == []
        sock.sendall(request[:-1])
        assert hangs_up(sock)


def test_all_gather_names_its_deadline(gangs):
    with pytest.raises(DeadlineError, match=r"ranks 0, 2 of 3 .*spark\.sparkdl\.comm\.timeout"):
        gangs[1].all_gather(b"alone", 0.2)
