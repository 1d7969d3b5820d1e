"""Communicators of a part of the ranks, which are threads, over real sockets on loopback addresses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sparkdl_comm.collectives.communicator import Communicator
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError, DeadlineError, InputError, SparkdlCommError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.topology import Topology
from tests.unit.collective_helpers import conf, in_gang, on_all, vector
from tests.unit.gang_helpers import SECONDS, gang_of, primary

CPU = torch.device("cpu")


def on_communicators(text: str, work: Callable[[Communicator], Any], **settings: Any) -> list[Any]:
    """What ``work(communicator)`` returned on each rank of the topology; raises what a rank raised."""
    rails = ("lo",) * Topology.parse(text).rails

    def one(gang: Any) -> Any:
        communicator = Communicator(gang, CPU, conf(topology=text, rails=rails, **{"strategy": "ring", **settings}))
        try:
            return work(communicator)
        finally:
            if gang.failure() is None:
                gang.all_gather(b"", SECONDS)
            communicator.close()

    return in_gang(text, rails, one)


def total(ranks: Any, count: int = 1001) -> torch.Tensor:
    return sum((vector(rank, count) for rank in ranks), torch.zeros(count))


@pytest.mark.parametrize(
    ("strategy", "rate"), [("ring", ",10gbit"), ("be", ",10gbit"), ("cheapest", ",10gbit"), ("cheapest", "")]
)
@pytest.mark.slow
def test_rows_and_columns_of_hosts_are_two_groups_at_once(strategy, rate):
    def work(communicator):
        rank = communicator.rank
        inside, between = communicator.split(rank // 2), communicator.split(rank % 2)
        handles = [part.all_reduce_async(vector(rank, 100_000)) for part in (inside, between, communicator, inside)]
        sums = [handle.wait() for handle in reversed(handles)][::-1]
        shapes = [str(part.collectives(strategy).topology) for part in (inside, between)]
        return shapes, (inside.rank, inside.world, between.rank, between.world), sums

    results = on_communicators(f"hosts:3x2{rate}", work, strategy=strategy)
    for rank, (shapes, numbers, sums) in enumerate(results):
        assert shapes == [f"hosts:1x2{rate}", f"star:3{rate}"]
        assert numbers == (rank % 2, 2, rank // 2, 3)
        row, column = range(rank // 2 * 2, rank // 2 * 2 + 2), range(rank % 2, 6, 2)
        for found, ranks in zip(sums, (row, column, range(6), row), strict=True):
            assert torch.equal(found, total(ranks, 100_000))


def test_columns_of_a_bcube_use_their_own_rail(monkeypatch):
    dialled = []
    dial = Gang.dial

    def recorded(self, rank, kind, deadline, rail=None):
        if kind.startswith("collective"):
            dialled.append(rail)
        return dial(self, rank, kind, deadline, rail)

    monkeypatch.setattr(Gang, "dial", recorded)

    def work(communicator):
        column = communicator.split(communicator.rank % 2)  # neighbours on rail 1
        summed = column.all_reduce(vector(communicator.rank))
        return str(column.collectives("ring").topology), summed

    results = on_communicators("bcube:2x3,1gbit/2gbit", work)
    assert dialled == [1] * 6  # three connections in each of two columns
    for rank, (topology, summed) in enumerate(results):
        assert topology == "star:3,2gbit"
        assert torch.equal(summed, total(range(rank % 2, 6, 2)))


def test_ranks_are_numbered_by_key_and_some_are_in_no_group():
    def work(communicator):
        rank = communicator.rank
        part = communicator.split(None if rank == 1 else 7, key=-rank)
        if part is None:
            return None
        gathered = part.all_gather(torch.tensor([float(rank)])).flatten().tolist()
        scattered = part.reduce_scatter(torch.arange(3.0) + 10 * rank).item()
        first = part.broadcast(torch.tensor([float(rank)]), root=0).item()
        pair = part.split(int(part.rank == 2))
        return part.rank, gathered, scattered, first, pair.world, pair.all_reduce(torch.ones(1)).item()

    expected = {3: 0, 2: 1, 0: 2}
    for rank, found in enumerate(on_communicators("star:4", work, strategy="be")):
        if rank == 1:
            assert found is None
            continue
        number, gathered, scattered, first, pairs, ones = found
        assert (number, gathered, first) == (expected[rank], [3.0, 2.0, 0.0], 3.0)
        assert scattered == 3 * number + 50
        assert pairs == ones == (1 if rank == 0 else 2)


def test_a_rank_that_fails_ends_both_groups():
    waiting = threading.Barrier(4)

    def work(communicator):
        rank = communicator.rank
        part = communicator.split(rank % 2)
        part.all_reduce(torch.ones(1))
        heard = threading.Event()
        communicator._gang.on_failure(lambda _: heard.set())  # after the groups, which were made before
        begun = (
            part.all_reduce_async(torch.ones(10)) if rank < 2 else None
        )  # the other one of the group does not begin it
        waiting.wait(SECONDS)
        if rank == 3:
            communicator._gang.announce_failure(primary(3))
        assert heard.wait(SECONDS)
        with pytest.raises((SparkdlCommError, ValueError)) as raised:
            (begun or part.all_reduce_async(torch.ones(10))).wait()
        return str(raised.value)

    said = on_communicators("star:4", work)
    assert all("boom" in text for text in said), said


def test_what_an_algorithm_cannot_do_on_a_part_is_left_to_torch():
    def work(communicator):
        rank = communicator.rank
        assert torch.equal(communicator.all_reduce(vector(rank)), total(range(4)))
        column = communicator.split(rank % 2)  # of a star, which has no groups
        with pytest.raises(ValueError, match="process group"):  # there is none in these threads
            column.all_reduce(vector(rank))

    assert on_communicators("hosts:2x2,10gbit", work, strategy="hierarchical") == [None] * 4


def test_what_cannot_be_split():
    def work(communicator):
        with pytest.raises(InputError, match="split.color='red'"):
            communicator.split("red")
        with pytest.raises(InputError, match="key=0.5"):
            communicator.split(0, 0.5)
        with pytest.raises(InputError, match="root=4: there are ranks 0 to 3"):
            communicator.broadcast(torch.ones(1), root=4)
        part = communicator.split(int(communicator.rank in (0, 3)))
        with pytest.raises(ConfError, match="share no switch"):
            part.all_reduce(torch.ones(3))

    assert on_communicators("bcube:2,2", work) == [None] * 4


def test_a_rank_that_does_not_split_is_waited_for_until_the_deadline():
    def work(gang):
        communicator = Communicator(gang, CPU, CommConf.from_mapping({}, timeout="1s", strategy="ring"))
        if gang.rank == 1:
            with pytest.raises(DeadlineError):
                communicator.split(0)
        return "late"

    with gang_of(2) as gangs:
        assert on_all(gangs, work) == ["late"] * 2
