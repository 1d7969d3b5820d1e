from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from sparkdl_comm.errors import AuthenticationError, ConfError, DeadlineError, GangError, InputError, RankLostError
from sparkdl_comm.gang import frames, handshake
from sparkdl_comm.gang.gang import Gang
from tests.unit.gang_helpers import (
    SECONDS,
    SECRET,
    AllGather,
    gang_of,
    hangs_up,
    join,
    join_all,
    primary,
    secondary,
    wait_for,
)


def visit(gang: Gang, hello: dict) -> dict:
    """What rank 0 answers to a peer that knows the secret."""
    deadline = time.monotonic() + SECONDS
    address = (gang.members[0].host, gang.members[0].port)
    with handshake.connect(address, SECRET, deadline) as sock:
        frames.send_frame(sock, hello, 4096, deadline)
        answer = frames.recv_frame(sock, 4096, deadline)
        with pytest.raises(ConnectionError):  # and it hangs up
            frames.recv_exact(sock, 1, deadline)
    return answer


def test_all_learn_of_each_other_with_one_exchange():
    gather = AllGather(3)
    gangs = join_all(3, gather=gather)
    try:
        assert gather.calls == [1, 1, 1]
        for rank, gang in enumerate(gangs):
            assert isinstance(gang, Gang)
            assert (gang.rank, gang.world, gang.host) == (rank, 3, "127.0.0.1")
            assert gang.members == gangs[0].members
            member = gang.members[rank]
            assert (member.rank, member.payload, member.host) == (rank, {"rows": 10 * rank}, "127.0.0.1")
            assert "127.0.0.1" in member.nics.values()
            assert gang.failure() is None
            gang.check()
        assert len({member.port for member in gangs[0].members}) == 3
    finally:
        for gang in gangs:
            gang.close()


def test_a_gang_of_one():
    with gang_of(1) as (gang,):
        gang.announce_failure(secondary(0))
        assert gang.failure() == secondary(0)


def test_the_announced_port_listens_already():
    def exchange(text: str) -> list[str]:
        member = json.loads(text)
        socket.create_connection((member["host"], member["port"]), SECONDS).close()
        return [text]

    join(0, 1, exchange).close()


def test_ranks_that_do_not_make_a_gang():
    def old(text: str) -> list[str]:
        return [text, json.dumps({**json.loads(text), "rank": 1, "attempt": "app-1/older"})]

    with pytest.raises(GangError, match="app-1/older"):
        join(0, 2, old)
    with pytest.raises(GangError, match=r"2 answers, from ranks \[0\]"):
        join(0, 2, lambda text: [text, text])
    with pytest.raises(GangError, match="no member"):
        join(0, 2, lambda text: [text, '{"rank": 1}'])


def test_wrong_secret_stays_out_and_the_others_hear_who_is_missing():
    results = join_all(3, {0: {"timeout": 2.0}, 1: {"secret": b"x" * 32}})
    assert isinstance(results[1], AuthenticationError)
    for rank in (0, 2):
        assert isinstance(results[rank], DeadlineError), results[rank]
        assert "rank 1 of 3 did not join" in str(results[rank])
        assert "spark.sparkdl.comm.timeout" in str(results[rank])


def test_deadline_names_all_who_are_missing():
    me = []

    def exchange(text: str) -> list[str]:
        me.append(text)
        return [text] + [json.dumps({**json.loads(text), "rank": rank}) for rank in (1, 2)]

    with pytest.raises(DeadlineError, match="ranks 1, 2 of 3 did not join"):
        join(0, 3, exchange, timeout=0.3)
    member = json.loads(me[0])
    with pytest.raises(OSError, match="refused"):  # nothing is left behind
        socket.create_connection((member["host"], member["port"]), SECONDS)


def test_exchange_that_fails():
    def exchange(text: str) -> list[str]:
        raise OSError("no driver")

    with pytest.raises(OSError, match="no driver"):
        join(0, 2, exchange)


def test_strangers_do_not_disturb_or_delay():
    """Garbage, silence and half a handshake are there before the other ranks come."""
    gather = AllGather(2)
    strangers = []

    def exchange(text: str) -> list[str]:
        member = json.loads(text)
        for start in [b"", b"GET / HTTP/1.1\r\n\r\n", handshake.MAGIC + b"n" * 32, handshake.MAGIC[:3]] * 5:
            sock = socket.create_connection((member["host"], member["port"]), SECONDS)
            sock.sendall(start)
            strangers.append((start, sock))
        return gather.of(0)(text)

    results: list = [None, None]

    def one(rank: int, with_strangers: bool) -> None:
        results[rank] = join(rank, 2, exchange if with_strangers else gather.of(rank), timeout=8.0)

    threads = [threading.Thread(target=one, args=(rank, rank == 0), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    # Silent ones may stay for 10 s; had they been dealt with one after the other, 8 s would not have been
    # enough.
    assert all(isinstance(result, Gang) for result in results)
    try:
        for start, sock in strangers:
            if start.startswith(b"GET"):
                assert hangs_up(sock)
        assert results[0].failure() is None
    finally:
        for _, sock in strangers:
            sock.close()
        for gang in results:
            gang.close()


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        ({"kind": "control", "rank": 1, "attempt": "app-1/0"}, "rank 1 has registered already"),
        ({"kind": "control", "rank": 0, "attempt": "app-1/0"}, "rank 0 has registered already"),
        ({"kind": "control", "rank": 1, "attempt": "app-0/9"}, "this is gang attempt app-1/0, not app-0/9"),
        ({"kind": "store", "rank": 1, "attempt": "app-0/9"}, "this is gang attempt app-1/0, not app-0/9"),
        ({"kind": "control", "rank": 2, "attempt": "app-1/0"}, "no rank 2 in a gang of 2"),
        ({"kind": "control", "rank": "1", "attempt": "app-1/0"}, "no rank '1'"),
        ({"kind": "coffee", "rank": 1, "attempt": "app-1/0"}, "no 'coffee' service"),
        ({}, "not None"),
    ],
)
def test_rank_0_refuses(hello, reason):
    with gang_of(2) as gangs:
        answer = visit(gangs[0], hello)
        assert answer["type"] == "refused"
        assert reason in answer["reason"]
        gangs[1].announce_failure(primary(1))  # the real rank 1 is still the one that is heard
        assert wait_for(gangs[0].failure) == primary(1)


def test_a_rank_that_is_refused_says_why():
    """Both ranks of the exchange call themselves 1: the second to come is refused."""
    gather = AllGather(3)
    exchanges = [gather.of(rank) for rank in range(3)]

    def lie(text: str) -> list[str]:
        return exchanges[2](json.dumps({**json.loads(text), "rank": 2}))

    results: list = [None] * 3

    def one(slot: int, rank: int, exchange) -> None:
        try:
            results[slot] = join(rank, 3, exchange, timeout=2.0)
        except GangError as exc:
            results[slot] = exc

    threads = [
        threading.Thread(target=one, args=args, daemon=True)
        for args in [(0, 0, exchanges[0]), (1, 1, exchanges[1]), (2, 1, lie)]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert isinstance(results[0], DeadlineError)
    assert "rank 2 of 3" in str(results[0])
    refused = [result for result in results[1:] if "registered already" in str(result)]
    assert len(refused) == 1


def test_serve_and_dial():
    with gang_of(3) as gangs:
        seen = []
        done = threading.Event()

        def handler(sock: socket.socket, rank: int) -> None:
            seen.append((rank, frames.recv_frame(sock, 100, time.monotonic() + SECONDS)))
            sock.close()
            done.set()

        gangs[1].serve("ring", handler)
        deadline = time.monotonic() + SECONDS
        with gangs[2].dial(1, "ring", deadline) as sock:
            frames.send_frame(sock, {"hi": 1}, 100, deadline)
            assert done.wait(SECONDS)
        assert seen == [(2, {"hi": 1})]
        gangs[1].close()
        with pytest.raises(RankLostError) as caught:
            gangs[2].dial(1, "ring", time.monotonic() + SECONDS)
        assert caught.value.rank == 1


def test_payload_must_be_json():
    with pytest.raises(InputError, match="payload"):
        join(0, 1, lambda text: [text], payload={"x": b""})


def test_ports_from_a_range():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        try:
            gang = join(0, 1, lambda text: [text], ports=range(first, first + 20))
        except ConfError:
            pytest.skip("twenty ports in a row are taken")
        with gang:
            assert first < gang.members[0].port < first + 20
