"""Collectives that cannot be done or do not end: calls and settings that do not fit, and ranks that are late or lost."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
import torch

from sparkdl_comm.collectives.engine.connection import Connection
from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError, GangError, InputError, RankLostError
from tests.unit.collective_helpers import conf, in_groups, on_all, vector
from tests.unit.gang_helpers import SECONDS, Crew, gang_of, join_all, primary, wait_for


@pytest.mark.parametrize(
    "tensors",
    [(torch.zeros(10), torch.zeros(11)), (torch.zeros(10), torch.zeros(10, dtype=torch.int32))],
    ids=["lengths", "dtypes"],
)
def test_tensors_that_differ_between_ranks_are_noticed(tensors):
    def work(group, rank):
        with pytest.raises(GangError) as error:
            group.start("all_reduce", tensors[rank]).wait(SECONDS)
        return str(error.value)

    errors = in_groups("star:2", "lp", work)
    # One of the two finds it out; the other one may only see that the connection closes.
    assert any("must call the same collectives" in error for error in errors)


@pytest.mark.parametrize(
    ("tensor", "op", "complaint"),
    [
        (torch.zeros(4, 4).t()[:2], "sum", "need contiguous tensors"),
        (torch.zeros(4), "product", "there are sum, mean, min, max"),
        (torch.zeros(4, dtype=torch.int32), "mean", "a mean of floating point only"),
        (torch.zeros(4, dtype=torch.bool), "sum", "real numbers only"),
    ],
)
def test_tensors_that_cannot_be_reduced(tensor, op, complaint):
    def work(group, rank):
        with pytest.raises(InputError, match=complaint):
            group.start("all_reduce", tensor, op)
        return group.start("all_reduce", torch.ones(3)).wait(SECONDS)  # nothing was sent

    assert [result.tolist() for result in in_groups("star:2", "ring", work)] == [[2.0] * 3] * 2


def test_a_rank_that_does_not_come_is_named_at_the_deadline():
    def work(gang):
        group = CollectiveGroup(gang, "ring", CommConf.from_mapping({}, timeout="3s"))
        group.prepare("all_reduce", 8, torch.float32)
        begin, said = time.monotonic(), ""
        if gang.rank != 2:
            with pytest.raises(GangError) as error:
                group.start("all_reduce", torch.ones(8)).wait(SECONDS)
            said = str(error.value)
        seconds = time.monotonic() - begin
        gang.all_gather(b"", SECONDS)
        group.close()
        return seconds, said

    with gang_of(3) as gangs:
        (seconds, said), (_, also), _ = on_all(gangs, work)
    assert 2.9 < seconds < 10
    # Whoever is second at the deadline may see only that the first one closes its connections.
    assert "stood still for 3 s, waiting for rank" in said + also


def test_the_gangs_failure_wakes_who_waits():
    def work(gang):
        group = CollectiveGroup(gang, "ring", conf())
        group.prepare("all_reduce", 8, torch.float32)
        gang.all_gather(b"", SECONDS)
        if gang.rank == 1:
            time.sleep(1.0)  # the others wait for it now
            gang.announce_failure(primary(1))
            return time.monotonic()
        with pytest.raises((GangError, ValueError)):
            group.start("all_reduce", torch.ones(8)).wait(SECONDS)
        return time.monotonic()

    with gang_of(3) as gangs:
        woken, announced, also = on_all(gangs, work)
    assert max(woken, also) - announced < 2


def test_a_cancelled_collective_ends_at_once_and_a_complete_one_cannot_be_cancelled():
    def work(gang):
        group = CollectiveGroup(gang, "ring", conf())
        done = group.start("all_reduce", torch.ones(8))
        assert done.wait(SECONDS).tolist() == [3.0] * 8
        done.cancel()
        group.start("all_reduce", torch.ones(8)).wait(SECONDS)
        gang.all_gather(b"", SECONDS)
        heard = threading.Event()
        if gang.rank == 0:  # no other rank has started it
            waiting = group.start("all_reduce", torch.ones(8))
            waiting.then(lambda work: heard.set())
            waiting.cancel()
            with pytest.raises(GangError, match="rank 0 cancelled ring all_reduce of 8 elements"):
                waiting.wait(SECONDS)
            assert heard.wait(SECONDS)
        gang.all_gather(b"", SECONDS)
        with pytest.raises(GangError):
            group.start("all_reduce", torch.ones(8)).wait(SECONDS)
        group.close()
        return "ended"

    with gang_of(3) as gangs:
        assert on_all(gangs, work) == ["ended"] * 3


def test_garbage_on_the_port_disturbs_nobody():
    def work(gang):
        group = CollectiveGroup(gang, "bml", conf())
        address = (gang.rails[0].address, gang.rails[0].port)
        with socket.create_connection(address) as stranger:
            stranger.sendall(b"\x00" * 4096)
            result = group.start("all_reduce", vector(gang.rank)).wait(SECONDS)
        group.close()
        return result

    with gang_of(3) as gangs:
        results = on_all(gangs, work)
    assert all(torch.equal(result, sum(vector(rank) for rank in range(3))) for result in results)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"topology": "bcube:2,2"}, "has 4 ranks, not 3; 3 fit star:3"),
        ({"topology": "star:4"}, "has 4 ranks, not 3"),
    ],
)
def test_topologies_that_do_not_fit(settings, complaint):
    with gang_of(3) as gangs:
        for result in on_all(gangs, lambda gang: CollectiveGroup(gang, "bml", conf(**settings))):
            assert isinstance(result, ConfError)
            assert complaint in str(result)


def test_ranks_with_different_settings_find_out_and_leave_no_thread():
    before = set(threading.enumerate())

    def work(gang):
        return CollectiveGroup(gang, "lp", conf(block="4KiB" if gang.rank else "8KiB"))

    with gang_of(2) as gangs:
        for result in on_all(gangs, work):
            assert isinstance(result, GangError)
            assert "4096" in str(result)
    assert not [t for t in set(threading.enumerate()) - before if "collectives" in t.name]


def test_a_missing_rail_names_key_and_nics():
    for result in join_all(2, dict.fromkeys(range(2), {"rails": ("lo", "eth77")})):
        assert isinstance(result, ConfError)
        assert "spark.sparkdl.comm.rails=eth77" in str(result)


def reduce_for_ever(gang: Any, pipe: Any) -> None:
    group = CollectiveGroup(gang, "bml", conf())
    values = torch.ones(2**20)
    group.start("all_reduce", values).wait(SECONDS)
    pipe.send("under way")
    try:
        while True:
            group.start("all_reduce", values.fill_(1.0)).wait(SECONDS)
    except GangError as error:
        pipe.send((type(error).__name__, time.time()))


def test_all_ranks_stop_within_2_seconds_of_a_peers_death(tmp_path):
    with Crew(3, tmp_path, reduce_for_ever) as crew:
        for rank in range(3):
            assert crew.hear(rank) == "under way"
        killed = time.time()
        crew.processes[1].kill()
        for rank in (0, 2):
            error, when = crew.hear(rank)
            assert error == RankLostError.__name__
            assert when - killed < 2


def test_closing_leaves_no_thread_and_no_connection():
    before = set(threading.enumerate())
    in_groups("star:3", "ring", lambda group, rank: group.start("all_reduce", vector(rank)).wait(SECONDS))
    assert wait_for(lambda: not [t for t in set(threading.enumerate()) - before if "collectives" in t.name])


def test_a_connection_that_breaks_while_it_sends(monkeypatch, caplog):
    def broken(connection, now):
        raise ConnectionResetError("cut")

    def work(group, rank):
        if rank == 0:
            monkeypatch.setattr(Connection, "send", broken)
        with pytest.raises(RankLostError):
            group.start("all_reduce", vector(rank)).wait(SECONDS)

    in_groups("star:2", "ring", work)
    assert not caplog.records  # an error that the engine knows, not one of its thread's own
