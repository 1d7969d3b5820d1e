"""Messages between ranks of one host, which are read from the sender's memory."""

from __future__ import annotations

import ctypes
from collections import Counter

import pytest
import torch

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.engine import connection
from sparkdl_comm.collectives.engine.peer_memory import OwnMemory, PeerMemory
from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.errors import GangError
from sparkdl_comm.topology import Topology
from tests.forkserver import context
from tests.unit.collective_helpers import conf, in_groups, on_all, vector
from tests.unit.gang_helpers import SECONDS, gang_of

MESSAGE = b"gradients of another process"


def copied(memory, address):
    target = ctypes.create_string_buffer(len(MESSAGE))
    memory.read(address, ctypes.addressof(target), len(MESSAGE))
    return target.raw


def own_message():
    """A buffer of this process, and its address."""
    message = ctypes.create_string_buffer(MESSAGE, len(MESSAGE))
    return message, ctypes.addressof(message)


def show_message(pipe):
    message, address = own_message()
    own = OwnMemory()
    pipe.send((own.description, address))
    pipe.recv()
    own.clear_stamp()
    message.raw = b"x" * len(MESSAGE)
    pipe.send("changed")
    pipe.recv()


def test_another_process_is_read_until_it_clears_its_stamp_or_ends():
    here, there = context.Pipe()
    process = context.Process(target=show_message, args=(there,), daemon=True)
    process.start()
    description, address = here.recv()
    memory = PeerMemory(description)
    assert memory.is_readable()
    assert copied(memory, address) == MESSAGE
    here.send("change it")
    here.recv()
    with pytest.raises(ConnectionResetError, match="the peer has failed"):
        copied(memory, address)
    here.send("end")
    process.join(SECONDS)
    with pytest.raises(OSError, match="cannot be read"):
        copied(memory, address)
    assert not memory.is_readable()


def test_what_cannot_be_read():
    own, (message, address) = OwnMemory(), own_message()
    assert copied(PeerMemory(own.description), address) == message.raw
    with pytest.raises(OSError, match="cannot be read: Bad address"):
        copied(PeerMemory(own.description), 8)  # no process has memory there
    # A process in another container may have the same number, and no such stamp.
    assert not PeerMemory(own.description[:-1] + b"?").is_readable()


@pytest.fixture
def reads(monkeypatch):
    """Bytes that all ranks have read from memory. Messages of any size are read from there."""
    monkeypatch.setattr(connection, "_LEAST_MEMORY_BYTES", 1)
    counts: Counter[str] = Counter()
    read = PeerMemory.read

    def counted(memory, source, target, count):
        read(memory, source, target, count)
        counts["bytes"] += count

    monkeypatch.setattr(PeerMemory, "read", counted)
    return counts


@pytest.mark.parametrize(
    ("topology", "algorithm"),
    [
        (t, a)
        for t in ("star:3", "hosts:1x4", "hosts:2x2")
        for a in ALGORITHMS
        if not ALGORITHMS[a].why_ineligible(Topology.parse(t))
    ],
)
def test_all_operations_of_all_algorithms(reads, topology, algorithm):
    world = Topology.parse(topology).world

    def work(group, rank):
        found = {}
        for operation in ALGORITHMS[algorithm].operations:
            found[operation] = group.start(operation, vector(rank), root=world - 1).wait(SECONDS)
        return found

    total = sum(vector(rank) for rank in range(world))
    results = in_groups(topology, algorithm, work)
    for found in results:
        assert torch.equal(found.get("all_reduce", total), total)
        assert torch.equal(found.get("broadcast", vector(world - 1)), vector(world - 1))
    assert torch.equal(results[world - 1].get("reduce", total), total)
    assert reads["bytes"] > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.uint8])
def test_messages_longer_than_a_turn_in_any_type(dtype):
    count = (3 << 20) + 5

    def work(group, rank):
        return group.start("all_reduce", torch.arange(count).remainder(50).to(dtype) + rank).wait(SECONDS)

    expected = 2 * torch.arange(count).remainder(50).to(dtype) + 1
    assert all(torch.equal(found, expected) for found in in_groups("star:2", "ring", work))


@pytest.mark.parametrize("reason", ["set", "refused"])
def test_ranks_that_may_not_read_each_other_use_their_sockets(reads, monkeypatch, reason):
    settings = {"shared_memory": "false"} if reason == "set" else {}
    if reason == "refused":
        monkeypatch.setattr(PeerMemory, "is_readable", lambda memory: False)

    def work(gang):
        group = CollectiveGroup(gang, "ring", conf(**settings))
        found = group.start("all_reduce", vector(gang.rank)).wait(SECONDS)
        gang.all_gather(b"", SECONDS)
        group.close()
        return found

    with gang_of(3) as gangs:
        results = on_all(gangs, work)
    assert all(torch.equal(found, sum(vector(rank) for rank in range(3))) for found in results)
    assert reads["bytes"] == 0


def test_a_message_that_its_sender_changed_after_a_failure_is_not_taken(reads):
    """Rank 0 gives up before rank 1 begins, and uses its tensor for something else."""

    def work(group, rank):
        tensor = torch.full((1000,), 7.0 if rank == 0 else 0.0)
        group.prepare("broadcast", 1000, torch.float32)
        group._gather(b"prepared")
        if rank == 0:
            sent = group.start("broadcast", tensor)
            sent.cancel()
            with pytest.raises(GangError):
                sent.wait(SECONDS)
            tensor.fill_(-1.0)
        group._gather(b"changed")
        if rank == 1:
            with pytest.raises(GangError):
                group.start("broadcast", tensor).wait(SECONDS)

    in_groups("star:2", "tree", work)
