"""Collectives of gangs whose ranks are threads, over real sockets on loopback addresses."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl_comm.collectives import measure
from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.collectives.measure import measured_cost, probe
from sparkdl_comm.collectives.transfers import transfers
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError, GangError, InputError, RankLostError
from sparkdl_comm.topology import Topology
from tests.unit.gang_helpers import SECONDS, Crew, gang_of, join_all, primary, wait_for


def conf(**settings: Any) -> CommConf:
    return CommConf.from_mapping({}, timeout=f"{SECONDS}s", **settings)


def on_all(gangs: list[Any], work: Callable[[Any], Any]) -> list[Any]:
    """What ``work(gang)`` returned, or raised, at each rank; all at once."""
    results: list[Any] = [None] * len(gangs)

    def one(rank: int) -> None:
        try:
            results[rank] = work(gangs[rank])
        except BaseException as exc:  # noqa: BLE001 - looked at by the test
            results[rank] = exc

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(len(gangs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    return results


def in_groups(topology: str, algorithm: str, work: Callable[[CollectiveGroup, int], Any], **settings: Any) -> list[Any]:
    """What ``work(group, rank)`` returned at each rank of a gang on this topology; raises what a rank raised."""
    rails = ("lo",) * Topology.parse(topology).rails

    def one(gang: Any) -> Any:
        group = CollectiveGroup(gang, algorithm, conf(topology=topology, rails=rails, **settings))
        try:
            return work(group, gang.rank)
        finally:
            gang.all_gather(b"", SECONDS)
            group.close()

    with gang_of(Topology.parse(topology).world, rails=rails) as gangs:
        results = on_all(gangs, one)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def vector(rank: int, count: int = 1001, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, whose sums are exact in every dtype."""
    return ((torch.arange(count) * (rank + 3)) % 7).to(dtype)


@pytest.mark.parametrize(
    ("topology", "algorithm"),
    [
        (t, a)
        for t in ("star:3", "bcube:2,2", "bcube:3x2", "hosts:1x4")
        for a in ALGORITHMS
        if not ALGORITHMS[a].unfit(Topology.parse(t))
    ],
)
def test_all_operations_of_all_algorithms(topology, algorithm):
    world = Topology.parse(topology).world

    def work(group, rank):
        found = {}
        for operation in ALGORITHMS[algorithm].operations:
            found[operation] = group.start(operation, vector(rank), root=world - 1).wait(SECONDS)
        return found

    results = in_groups(topology, algorithm, work)
    total = sum(vector(rank) for rank in range(world))
    for found in results:
        assert torch.equal(found.get("all_reduce", total), total)
        assert torch.equal(found.get("broadcast", vector(world - 1)), vector(world - 1))
    assert torch.equal(results[world - 1].get("reduce", total), total)


@pytest.mark.parametrize(
    ("topology", "algorithm"),
    [
        (t, a)
        for t in ("star:3", "bcube:2,2", "bcube:2x3,1gbit/9gbit", "hosts:2x2")
        for a in [name for name, algorithm in ALGORITHMS.items() if "all_gather" in algorithm.operations]
        if not ALGORITHMS[a].unfit(Topology.parse(t))
    ],
)
def test_parts_of_equal_length_are_gathered_and_scattered(topology, algorithm):
    world, shapes = Topology.parse(topology).world, [(0,), (1,), (5,), (3, 67)]

    def work(group, rank):
        found = []
        for shape in shapes:
            everybodys = torch.empty(world, *shape)
            group.all_gather(torch.full(shape, float(rank)), everybodys).wait(SECONDS)
            own = torch.empty(shape)
            given = torch.stack([torch.full(shape, 10.0 * rank + other) for other in range(world)])
            group.reduce_scatter(given, own).wait(SECONDS)
            assert torch.equal(given, torch.stack([torch.full(shape, 10.0 * rank + other) for other in range(world)]))
            found.append((everybodys, own))
        return found

    for rank, found in enumerate(in_groups(topology, algorithm, work)):
        for shape, (everybodys, own) in zip(shapes, found, strict=True):
            assert torch.equal(everybodys, torch.stack([torch.full(shape, float(other)) for other in range(world)]))
            assert torch.equal(own, torch.full(shape, 10.0 * sum(range(world)) + rank * world))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
def test_dtypes(dtype):
    count = 70001  # more than is combined at once, and an odd number of bytes
    results = in_groups(
        "star:3", "ring", lambda group, rank: group.start("all_reduce", vector(rank, count, dtype)).wait(SECONDS)
    )
    wanted = sum(vector(rank, count, dtype) for rank in range(3))
    assert all(torch.equal(result, wanted) for result in results)


@pytest.mark.parametrize(("op", "wanted"), [("max", torch.amax), ("min", torch.amin), ("mean", torch.mean)])
def test_ops(op, wanted):
    results = in_groups("star:3", "bml", lambda group, rank: group.start("all_reduce", vector(rank), op).wait(SECONDS))
    vectors = torch.stack([vector(rank) for rank in range(3)])
    torch.testing.assert_close(results, [wanted(vectors, 0)] * 3)


def test_many_collectives_under_way_at_once():
    sizes = [1, 100_000, 0, 17, 300_000, 5]

    def work(group, rank):
        jobs = [group.start("all_reduce", vector(rank, size)) for size in sizes]
        return [job.wait(SECONDS) for job in reversed(jobs)]

    for result in in_groups("bcube:2,2", "bml", work):
        for found, size in zip(reversed(result), sizes, strict=True):
            assert torch.equal(found, sum(vector(rank, size) for rank in range(4)))


def test_results_are_the_same_bits_everywhere_and_every_time():
    def work(group, rank):
        values = torch.randn(10_000, generator=torch.Generator().manual_seed(rank))
        return [group.start("all_reduce", values.clone()).wait(SECONDS) for _ in range(3)]

    runs = [run for result in in_groups("bcube:2x3", "bml", work, block="1KiB") for run in result]
    assert all(torch.equal(run, runs[0]) for run in runs)


def test_auto_takes_what_is_cheapest_for_each_size():
    def work(group, rank):
        for count in (1, 2**18):
            assert torch.equal(group.start("all_reduce", torch.ones(count)).wait(SECONDS), torch.full((count,), 4.0))
        return [prepared.plan.algorithm for prepared in group._prepared.values()]

    small, large = in_groups("star:4,100mbit", "auto", work)[0]
    assert small in ("mst", "be")
    assert large in ("torus2d", "ring", "bml", "be")


def test_links_of_unknown_rate_are_measured_once(monkeypatch):
    measured = []

    def counting(*args):
        measured.append(args)
        return measured_cost(*args)

    def work(gang):
        group = CollectiveGroup(gang, "auto", conf())
        cost = group.cost
        gang.all_gather(b"", SECONDS)
        group.close()
        return cost

    monkeypatch.setattr(measure, "measured_cost", counting)
    monkeypatch.setattr(measure, "_known", {})
    with gang_of(3) as gangs:
        costs = on_all(gangs, work)
    assert len(measured) == 3
    with gang_of(3) as gangs:
        assert on_all(gangs, work) == costs
    assert len(measured) == 3
    assert costs[0] == costs[1] == costs[2]
    # From a thread to another one of this process, through the kernel: not more than a million bytes in a second.
    assert 0 < costs[0].alpha < 1
    assert 0 < costs[0].betas[0] < 1e-6
    assert 0 < costs[0].gamma < 1e-7


@settings(deadline=None)
@given(st.sampled_from(["star:1", "star:4", "bcube:3,2", "bcube:2x3", "hosts:3x2", "fattree:4"]))
def test_the_probes_of_links_meet(text):
    topology = Topology.parse(text)
    for rail in range(topology.rails):
        found = transfers(probe(topology, rail, 8))
        assert len(found) == (len(topology.hosts) if topology.radices[rail] > 1 else 0)
        assert len({t.target for t in found}) == len(found)


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
    assert wait_for(lambda: not {t.name for t in threading.enumerate() if "collectives" in t.name} - before)
