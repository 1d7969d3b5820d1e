"""A rank of the fabric is killed, or an aggregator: the others go on."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from sparkdl_comm.errors import DeadlineError, GangError, ProtocolError, RankLostError
from sparkdl_comm.fabric import sender
from sparkdl_comm.fabric.api import Fabric
from sparkdl_comm.fabric.control import ControlLink
from sparkdl_comm.fabric.daemon import Daemon
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.protocol import Expect, Failed, Fence, Kind, Leave
from sparkdl_comm.fabric.server import Server
from sparkdl_comm.fabric.transport import HEADER_BYTES, Header
from tests.slow import slow
from tests.unit.fabric_helpers import ELEMENTS, conf, raised, run, scheduler, server, worker
from tests.unit.gang_helpers import SECONDS, Crew

SERVER, REPLICA = 1, 2
#: Updates that the server has applied when it is killed, and updates that the replica may lack.
KILLED_AT, LEAD = 9, 3
REPLICATED = FabricParams("async:30", divergence_bound=LEAD * float(np.sqrt(ELEMENTS)))
PARAMS = FabricParams("async:30")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def push_ones(made, count):
    """Gets and pushes; how many were applied, and the versions of the models."""
    applied, versions, model = 0, [], np.empty(ELEMENTS, np.float32)
    for _ in range(count):
        versions.append(made.get(SERVER, model))
        np.testing.assert_array_equal(model, float(versions[-1]))
        applied += made.push(SERVER, np.ones(ELEMENTS, np.float32)).wait().version is not None
    return applied, versions


def killed_server(gang, pipe):
    with Fabric(gang, conf(fabric_replica_aggregators=1)) as fabric:
        if gang.rank == 0:
            fabric.register_as_scheduler(REPLICATED).await_end(60.0)
            pipe.send((fabric.service.session.lost_updates, gang.failure()))
        elif gang.rank == SERVER:
            made = fabric.register_as_server(REPLICATED, np.zeros(ELEMENTS, np.float32))

            def apply(model, update, count):
                model += update
                if made.version + count >= KILLED_AT:
                    kill()

            made.register_update_callback(apply)
            made.serve(60.0)
        elif gang.rank == REPLICA:
            made = fabric.register_as_replica(SERVER, REPLICATED, np.zeros(ELEMENTS, np.float32))
            made.serve(60.0)
            pipe.send((made.snapshot(), made.largest_delay))
        else:
            pipe.send(push_ones(fabric.register_as_worker(REPLICATED, 1), 15))
    pipe.recv()


def test_replica_takes_over(tmp_path):
    with Crew(5, tmp_path, killed_server) as crew:
        workers = [crew.hear(rank, 60.0) for rank in (3, 4)]
        (values, version), largest_delay = crew.hear(REPLICA, 60.0)
        lost, failure = crew.hear(0, 60.0)
        crew.processes[SERVER].join(60.0)
        assert crew.processes[SERVER].exitcode == -signal.SIGKILL
    assert failure is None
    # What the server had not told of yet counts too.
    assert lost + 1 <= LEAD
    np.testing.assert_array_equal(values, float(version))
    applied = sum(count for count, _ in workers)
    assert applied - lost - 1 <= version <= applied + 1
    assert applied > KILLED_AT
    assert 0 < largest_delay <= 30
    for _, versions in workers:
        falls = [before - after for before, after in itertools.pairwise(versions) if after < before]
        assert len(falls) <= 1  # only when the replica took over


def killed_worker(gang, pipe):
    with Fabric(gang, conf()) as fabric:
        if gang.rank == 0:
            fabric.register_as_scheduler(PARAMS).await_end(60.0)
            pipe.send(gang.failure())
        elif gang.rank == SERVER:
            made = fabric.register_as_server(PARAMS, np.zeros(ELEMENTS, np.float32))
            made.serve(60.0)
            pipe.send(made.snapshot())
        else:
            made = fabric.register_as_worker(PARAMS, 1)
            if gang.rank == 2:
                push_ones(made, 3)
                made.push(SERVER, np.ones(ELEMENTS, np.float32))  # perhaps it gets through
                kill()
            pipe.send(push_ones(made, 12))
    pipe.recv()


def test_a_killed_worker(tmp_path):
    with Crew(5, tmp_path, killed_worker) as crew:
        applied = sum(crew.hear(rank, 60.0)[0] for rank in (3, 4))
        values, version = crew.hear(SERVER, 60.0)
        assert crew.hear(0, 60.0) is None
        crew.processes[2].join(60.0)
        assert crew.processes[2].exitcode == -signal.SIGKILL
    np.testing.assert_array_equal(values, float(version))
    assert applied <= version <= applied + 4


def test_a_killed_aggregator():
    def work(fabric):
        with fabric:
            made = fabric.register_as_worker(PARAMS, 1)
            first, _ = push_ones(made, 3)
            fabric.processes[0].kill()
            return first + push_ones(made, 6)[0]

    results, _ = run([scheduler(PARAMS), server(PARAMS), work, worker(PARAMS, lambda made: push_ones(made, 9)[0], 1)])
    raised(results)
    values, version = results[SERVER].snapshot()
    np.testing.assert_array_equal(values, float(version))
    assert version == results[2] + results[3]


def test_who_leaves_does_not_take_the_scheduler_for_lost(monkeypatch):
    """The scheduler hangs up at once, perhaps before the leaving node has continued."""
    left = []

    def tell(daemon, message, tell=Daemon.report):
        tell(daemon, message)
        if isinstance(message, Leave):
            left.append(daemon)
            daemon._thread.join(SECONDS)

    monkeypatch.setattr(Daemon, "report", tell)
    results, _ = run([scheduler(PARAMS), server(PARAMS), worker(PARAMS, lambda made: push_ones(made, 1))])
    raised(results)
    assert left
    assert all(daemon.error is None for daemon in left)


@pytest.mark.parametrize("answers", [True, slow(False)])
def test_a_server_that_cannot_say_what_it_has_of_a_lost_worker(answers, monkeypatch):
    """It is in the middle of its update; or it never answers."""
    applying, over = threading.Event(), threading.Event()

    def schedule(fabric):
        try:
            scheduler(PARAMS)(fabric)
        finally:
            over.set()

    def serve(fabric):
        made = fabric.register_as_server(PARAMS, np.zeros(ELEMENTS, np.float32))

        def apply(model, update, count):
            applying.set()
            over.wait(SECONDS)

        made.register_update_callback(apply)
        made.serve(SECONDS)

    def leave(fabric):
        fabric.register_as_worker(PARAMS, aggregators=0).push(SERVER, np.ones(ELEMENTS, np.float32))
        assert applying.wait(SECONDS)
        fabric._daemon._link.hang_up()
        assert over.wait(SECONDS)

    if not answers:
        monkeypatch.setattr(
            Daemon,
            "_handle",
            lambda daemon, message, take=Daemon._handle: None if isinstance(message, Fence) else take(daemon, message),
        )
    results, _ = run([schedule, serve, leave, worker(PARAMS, lambda made: over.wait(SECONDS))], timeout=4.0)
    words = (
        "data from the worker of rank 2 was not processed within 4 s; set spark.sparkdl.comm.timeout"
        if answers
        else "the server of rank 1 did not report within 8 s what it received from the worker of rank 2, which was lost; set"
        " spark.sparkdl.comm.timeout"
    )
    for result in (results[0], results[SERVER]):
        assert isinstance(result, GangError)
        assert words in str(result)
    assert not answers or isinstance(results[SERVER], DeadlineError)


def killed_alone(gang, pipe):
    try:
        with Fabric(gang, conf()) as fabric:
            if gang.rank == 0:
                fabric.register_as_scheduler(PARAMS).await_end(60.0)
            elif gang.rank == SERVER:
                made = fabric.register_as_server(PARAMS, np.zeros(ELEMENTS, np.float32))
                made.register_update_callback(lambda model, update, count: kill())
                made.serve(60.0)
            else:
                push_ones(fabric.register_as_worker(PARAMS), 3)
    except GangError as exc:
        pipe.send((str(exc), gang.failure()))
    pipe.recv()


def test_a_killed_server_without_replica(tmp_path):
    with Crew(3, tmp_path, killed_alone) as crew:
        for rank in (0, 2):
            words, failure = crew.hear(rank, 60.0)
            assert "server 0 is lost, and there is no replica" in words
            assert isinstance(failure.to_exception(), RankLostError)


@pytest.mark.parametrize("rank", [0])
def test_the_scheduler_is_lost(tmp_path, rank):
    with Crew(3, tmp_path, killed_scheduler) as crew:
        for other in (1, 2):
            assert isinstance(crew.hear(other, 60.0), RankLostError)


@pytest.mark.parametrize(
    ("kind", "in_header", "words"),
    [
        (
            Kind.UPDATE,
            False,
            r"refused data from rank 2: .* \(1 update\(s\), version 0\): the checksum",
        ),
        slow(
            Kind.MODEL,
            False,
            r"refused data from rank 1: .* \(the model, version 0\): the checksum",
        ),
        (Kind.UPDATE, True, "refused data from rank 2: the checksum of a message header"),
    ],
)
def test_a_byte_that_becomes_another_one_on_its_way(kind, in_header, words, monkeypatch):
    """All hear of it at once; the deadline is far away. And all hear of that, even where the scheduler hears of the refusal
    later than of what its sender goes on to see."""
    send, due = sender.send_all, []

    def spoilt_send(sock, data, *more):
        is_header = len(data) == HEADER_BYTES
        if is_header and Header.unpack(bytes(data))[0].kind is kind:
            due.append(sock)
        if due == [sock] and is_header == in_header:
            data = bytearray(data)
            data[7] ^= 0x10
            due.append(None)
            send(sock, data, *more)
            time.sleep(0.3)
            return
        send(sock, data, *more)

    monkeypatch.setattr(sender, "send_all", spoilt_send)
    hear_of_failures_late(monkeypatch)
    results, fabrics = run(
        [scheduler(PARAMS), server(PARAMS), worker(PARAMS, lambda made: push_ones(made, 3))], timeout=600.0
    )
    assert due[1] is None, "the byte was spoilt"
    assert all(isinstance(result, GangError) and re.search(words, result.message) for result in results), results
    failure = fabrics[0]._gang.failure().to_exception()
    assert (type(failure), failure.rank) == (ProtocolError, 1 if kind is Kind.MODEL else 2)


def test_a_node_that_cannot_do_what_it_is_told_is_named(monkeypatch):
    """Its daemon's listening thread finds out, and goes on to listen until the scheduler has heard of it."""

    def hear(part, message, hear=Server.on_message):
        if isinstance(message, Expect):
            raise ProtocolError("no such course")
        hear(part, message)

    monkeypatch.setattr(Server, "on_message", hear)
    hear_of_failures_late(monkeypatch)
    results, fabrics = run(
        [scheduler(PARAMS), server(PARAMS), worker(PARAMS, lambda made: push_ones(made, 1))], timeout=600.0
    )
    words = "rank 1, server of the fabric, failed: no such course"
    assert isinstance(results[SERVER], ProtocolError)
    assert all(isinstance(results[rank], GangError) and words in str(results[rank]) for rank in (0, 2)), results
    failure = fabrics[0]._gang.failure().to_exception()
    assert (type(failure), failure.rank) == (ProtocolError, SERVER)


def hear_of_failures_late(monkeypatch):
    """Delay the scheduler's knowledge until all others' connections to the failed node could have broken."""
    receive = ControlLink.receive

    def late(link, *timeout):
        message = receive(link, *timeout)
        if isinstance(message, Failed):
            time.sleep(1.0)
        return message

    monkeypatch.setattr(ControlLink, "receive", late)


def killed_scheduler(gang, pipe):
    try:
        with Fabric(gang, conf()) as fabric:
            if gang.rank == 0:
                fabric.register_as_scheduler(PARAMS)
                kill()
            elif gang.rank == SERVER:
                fabric.register_as_server(PARAMS, np.zeros(ELEMENTS, np.float32)).serve(60.0)
            else:
                push_ones(fabric.register_as_worker(PARAMS), 10**6)
    except GangError as exc:
        pipe.send(exc)
    pipe.recv()


def test_a_process_that_ends_at_once_is_not_left_behind(monkeypatch):
    started = []

    class Remembered(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Remembered)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    model = np.zeros(10**6, np.float32)
    results, _ = run([lambda fabric: fabric.register_as_worker(PARAMS, 0, {"server": model})])
    assert isinstance(results[0], ConnectionError)
    assert [process.returncode for process in started] == [1]
