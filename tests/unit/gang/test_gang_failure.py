from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from sparkdl_comm.errors import RankFailedError, RankLostError
from sparkdl_comm.gang.control import HOLD_SECONDS
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.gang import Gang
from tests.slow import slow
from tests.unit.gang_helpers import SECONDS, Crew, gang_of, primary, secondary, wait_for


def test_first_failure_reaches_all_and_is_not_replaced():
    with gang_of(3) as gangs:
        gangs[1].announce_failure(primary(1))
        assert gangs[1].failure() == primary(1)
        for gang in gangs:
            assert wait_for(gang.failure) == primary(1)
        gangs[2].announce_failure(primary(2))
        gangs[0].announce_failure(primary(0))
        for gang in gangs:
            assert gang.failure() == primary(1)
            with pytest.raises(RankFailedError, match="rank 1 failed in backward at step 3: ValueError: boom"):
                gang.check()


def test_a_loss_after_the_failure_does_not_replace_it():
    with gang_of(3) as gangs:
        gangs[1].announce_failure(primary(1))
        assert all(wait_for(gang.failure) for gang in gangs)
        gangs[2]._control.stop(leave=False)
        assert wait_for(lambda: 2 not in gangs[0]._control._peers)  # it has seen the EOF
        gangs[0]._control.stop(leave=False)
        assert wait_for(lambda: not gangs[1]._control._peers)
        assert [gang.failure() for gang in gangs] == [primary(1)] * 3


def test_rank_0s_own_failure_reaches_all():
    with gang_of(3) as gangs:
        gangs[0].announce_failure(primary(0))
        for gang in gangs:
            assert wait_for(gang.failure) == primary(0)


def test_all_agree_when_several_fail_at_once():
    with gang_of(4) as gangs:
        threads = [threading.Thread(target=gang.announce_failure, args=(primary(gang.rank),)) for gang in gangs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert wait_for(lambda: all(gang.failure() for gang in gangs))
        assert len({gang.failure() for gang in gangs}) == 1


@pytest.mark.parametrize("reporter", [0, 1])
def test_primary_failure_wins_over_an_earlier_secondary_one(reporter):
    with gang_of(3) as gangs:
        early = threading.Thread(target=gangs[reporter].announce_failure, args=(secondary(reporter),))
        early.start()
        assert wait_for(lambda: gangs[0]._control._deferred is not None)  # it is there, and held
        gangs[2].announce_failure(primary(2))
        early.join(SECONDS)
        for gang in gangs:
            assert wait_for(gang.failure) == primary(2)


@pytest.mark.parametrize("reporter", [slow(0), 1])
def test_secondary_failure_counts_when_nothing_else_comes(reporter):
    with gang_of(3) as gangs:
        start = time.monotonic()
        gangs[reporter].announce_failure(secondary(reporter))
        assert time.monotonic() - start >= 0.9 * HOLD_SECONDS
        for gang in gangs:
            assert wait_for(gang.failure) == secondary(reporter)


def test_failure_as_large_as_it_may_be():
    huge = Failure(1, 1, "p", "E", "\x00" * 10**6, "\x00" * 10**6)
    with gang_of(3) as gangs:
        gangs[1].announce_failure(huge)
        for gang in gangs:
            assert wait_for(gang.failure) == huge


def test_exception_that_ends_a_with_block_is_announced():
    with gang_of(2) as gangs:
        with pytest.raises(ZeroDivisionError), gangs[1]:
            _ = 1 / 0
        failure = wait_for(gangs[0].failure)
        assert (failure.rank, failure.error) == (1, "ZeroDivisionError")


def test_check_can_wait_for_the_verdict():
    with gang_of(2) as gangs:
        gangs[0].check(0.05)
        threading.Timer(0.2, gangs[1].announce_failure, [primary(1)]).start()
        with pytest.raises(RankFailedError):
            gangs[0].check(SECONDS)


def test_callbacks():
    with gang_of(2) as gangs:
        calls = []

        def broken(failure: Failure) -> None:
            calls.append("broken")
            raise RuntimeError("a callback's bug")

        gangs[1].on_failure(broken)
        gangs[1].on_failure(lambda failure: calls.append((failure.rank, threading.current_thread().name)))
        assert calls == []
        gangs[0].announce_failure(primary(0))
        gangs[0].announce_failure(primary(0, "again"))
        assert wait_for(lambda: len(calls) == 2)
        assert calls == ["broken", (0, "sparkdl-gang-1")]
        gangs[1].on_failure(lambda failure: calls.append("at once"))
        assert calls[2:] == ["at once"]


def test_clean_leave_is_no_failure():
    for leaver in (0, 2):
        with gang_of(3) as gangs:
            gangs[leaver].close()
            gangs[leaver].close()
            stayed = [gang for gang in gangs if gang.rank != leaver]
            watched = gangs[0] if leaver else gangs[1]
            assert wait_for(lambda w=watched, n=leaver: n not in w._control._peers)  # it has seen the EOF
            for gang in stayed:
                assert gang.failure() is None
            if leaver:  # and those who stay still hear of each other
                gangs[1].announce_failure(primary(1))
                assert wait_for(gangs[0].failure) == primary(1)
            else:
                gangs[1].announce_failure(primary(1))
                assert gangs[1].failure() == primary(1)


def test_connection_cut_without_a_word_is_a_loss():
    with gang_of(3) as gangs:
        gangs[1]._control.stop(leave=False)
        for gang in (gangs[0], gangs[2]):
            failure = wait_for(gang.failure)
            assert (failure.rank, failure.error) == (1, "RankLostError")
            with pytest.raises(RankLostError) as caught:
                gang.check()
            assert caught.value.rank == 1


def test_member_that_sends_nonsense_counts_as_lost():
    with gang_of(3) as gangs:
        peer = gangs[2]._control._peers[0]
        gangs[2]._control.post(lambda: peer.sock.send(b"\xff" * 8))
        failure = wait_for(gangs[1].failure)
        assert (failure.rank, failure.error) == (2, "RankLostError")
        assert "4294967295" in failure.message


def report(gang: Gang, pipe) -> None:
    gang.on_failure(lambda failure: pipe.send((failure.rank, failure.error)))
    threading.Event().wait(60)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_process_is_seen_by_all(tmp_path, victim):
    with Crew(3, tmp_path, report) as crew:
        os.kill(crew.processes[victim].pid, signal.SIGKILL)
        crew.processes[victim].join(SECONDS)
        assert crew.processes[victim].exitcode == -signal.SIGKILL
        for rank in {0, 1, 2} - {victim}:
            assert crew.hear(rank, 5.0) == (victim, "RankLostError")


def tolerate_and_report(gang: Gang, pipe) -> None:
    lost: list[int] = []
    if gang.rank == 0:
        gang.tolerate(lost.append)
    pipe.send("ready")
    pipe.recv()
    wait_for(lambda: lost or gang.rank)
    pipe.send((lost, gang.failure()))
    pipe.recv()


def test_a_loss_that_is_tolerated(tmp_path):
    """The others go on; what a rank announces fails the gang all the same."""
    with Crew(3, tmp_path, tolerate_and_report) as crew:
        assert [crew.hear(rank) for rank in range(3)] == ["ready"] * 3
        os.kill(crew.processes[1].pid, signal.SIGKILL)
        crew.pipes[0].send("look")
        assert crew.hear(0) == ([1], None)
        crew.pipes[2].send("look")
        assert crew.hear(2) == ([], None)
    with gang_of(3) as gangs:
        gangs[0].tolerate(lambda rank: None)
        gangs[1].announce_failure(primary(1))
        assert all(wait_for(gang.failure) == primary(1) for gang in gangs)


def test_a_lost_rank_does_not_keep_rank_0():
    with gang_of(3) as gangs:
        lost: list[int] = []
        gangs[0].tolerate(lost.append)
        gangs[1]._control.stop(leave=False)
        gangs[2].close()
        assert gangs[0].wait_until_alone(SECONDS)
        assert wait_for(lambda: lost) == [1]


def fork_and_report(gang: Gang, pipe) -> None:
    child = os.fork()
    if child == 0:
        threading.Event().wait(30)
        os._exit(0)
    pipe.send(child)
    report(gang, pipe)


def test_a_forked_child_that_lives_on_does_not_hide_the_death(tmp_path):
    children = []
    with Crew(2, tmp_path, fork_and_report) as crew:
        try:
            children = [crew.hear(rank) for rank in range(2)]
            os.kill(crew.processes[1].pid, signal.SIGKILL)
            assert crew.hear(0, 5.0) == (1, "RankLostError")
            os.kill(children[1], 0)  # it does live on
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)


def announce_and_die(gang: Gang, pipe) -> None:
    if gang.rank == 1:
        pipe.recv()
        gang.announce_failure(primary(1))
        os._exit(1)
    report(gang, pipe)


def test_a_process_that_says_why_before_it_ends(tmp_path):
    with Crew(3, tmp_path, announce_and_die) as crew:
        crew.pipes[1].send("now")
        for rank in (0, 2):
            assert crew.hear(rank) == (1, "ValueError")
