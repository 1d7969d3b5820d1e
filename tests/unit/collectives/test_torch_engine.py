"""Plans by torch.distributed's own sends and receives: gloo, in processes."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sparkdl_comm.collectives.algorithms import ALGORITHMS, make_plan
from sparkdl_comm.collectives.engine.torch_p2p import TorchEngine, TorchPlan, process_group_of
from sparkdl_comm.collectives.plan import Collective
from sparkdl_comm.ddp_hooks import torch_communicator
from sparkdl_comm.errors import InputError
from sparkdl_comm.topology import Topology
from tests.forkserver import context

WORLD = 4
CPU = torch.device("cpu")
TOPOLOGIES = ("star:4", "bcube:2,2", "hosts:2x2")
#: The plans' ranks are the group's in another order.
ORDER = [2, 0, 3, 1]


def cases() -> list[Collective | Any]:
    for text in TOPOLOGIES:
        topology = Topology.parse(text)
        for algorithm in ALGORITHMS.values():
            if not algorithm.why_ineligible(topology):
                for operation in algorithm.operations:
                    yield algorithm.name, Collective(operation, topology, 41, root=1, block=6)


def vector(place: int) -> torch.Tensor:
    return ((torch.arange(41) * (place + 3)) % 7).float()


def run_plans(place: int, device: torch.device) -> tuple[list[Any], list[Any], list[float]]:
    """What a place finds by all :func:`cases`, by other ops, and in half precision."""
    engine = TorchEngine(place, ORDER, device)
    own = vector(place).to(device)
    found = []
    for name, collective in cases():
        tensor = own.clone()
        engine.start(engine.prepare(make_plan(name, collective)), tensor).wait()
        found.append(tensor.tolist())
    plan = engine.prepare(make_plan("ring", Collective("all_reduce", Topology.parse("star:4"), 41)))
    ops = [engine.start(plan, own.clone(), op).wait().tolist() for op in ("mean", "max", "min")]
    return found, ops, engine.start(plan, own.bfloat16()).wait().tolist()


def rank_program(rank: int, rendezvous: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=120),
    )
    pipe.send((*run_plans(ORDER.index(rank), CPU), in_pairs(rank), split_by_torch(rank)))
    dist.barrier()
    dist.destroy_process_group()


def in_pairs(rank: int) -> list[float]:
    """A plan of two ranks by the engine, in both pairs at once; the plans' order is not torch's."""
    order = [rank | 1, rank & ~1]
    group = process_group_of(order, 60)
    engine = TorchEngine(order.index(rank), order, CPU, group)
    plan = engine.prepare(make_plan("lp", Collective("broadcast", Topology.parse("star:2"), 2, root=0, block=1)))
    found = engine.start(plan, torch.tensor([rank, 5.0])).wait().tolist()
    engine.close()
    return found


def split_by_torch(rank: int) -> list[Any]:
    """Every collective of a Communicator of ranks 3, 2 and 0, in this order, by torch.distributed."""
    whole = torch_communicator({"spark.sparkdl.comm.strategy": "gloo", "spark.sparkdl.comm.timeout": "60s"}, CPU)
    part = whole.split(None if rank == 1 else 0, key=-rank)
    if part is None:
        return []
    part.barrier()
    gathered = part.all_gather(torch.tensor([float(rank)])).flatten().tolist()
    scattered = part.reduce_scatter(torch.arange(3.0) + 10 * rank).item()
    first, total = part.broadcast(torch.tensor(rank), root=1).item(), part.all_reduce(torch.tensor(rank)).item()
    return [part.rank, gathered, scattered, first, total]


def run_ranks(program: Callable[[int, str, Any], None], rendezvous: Path, seconds: float) -> list[Any]:
    """What ``program(rank, rendezvous, pipe)`` sends, each rank in a process of its own; by place in the plans."""
    pipes, processes = [], []
    for rank in range(WORLD):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=program, args=(rank, str(rendezvous), theirs), daemon=True))
        processes[-1].start()
        pipes.append(ours)
    try:
        assert all(pipe.poll(seconds) for pipe in pipes)
        by_rank = [pipe.recv() for pipe in pipes]
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    return [by_rank[rank] for rank in ORDER]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """By place in the plans."""
    return run_ranks(rank_program, tmp_path_factory.mktemp("gloo") / "rendezvous", 150)


def check_plans(results: list[Any]) -> None:
    """``results``: what each place has found by all :func:`cases`."""
    total = sum(vector(place) for place in range(WORLD)).tolist()
    for number, (name, collective) in enumerate(cases()):
        ended = [found[number] for found in results]
        plan = make_plan(name, collective)
        if collective.operation == "all_reduce":
            assert ended == [total] * WORLD, name
        if collective.operation == "broadcast":
            assert ended == [vector(1).tolist()] * WORLD, name
        if collective.operation == "reduce":
            assert ended[1] == total, name
        for place in range(WORLD):
            for start, stop in plan.owned_ranges(place):
                if collective.operation == "reduce_scatter":
                    assert ended[place][start:stop] == total[start:stop], name
                if collective.operation == "all_gather":
                    assert all(one[start:stop] == vector(place).tolist()[start:stop] for one in ended), name


def test_all_plans_give_what_the_socket_engine_gives(results):
    check_plans([found for found, *_ in results])


def check_ops(ops: list[list[Any]], halves: list[list[float]]) -> None:
    vectors = torch.stack([vector(place) for place in range(WORLD)])
    wanted = [vectors.mean(0).tolist(), vectors.amax(0).tolist(), vectors.amin(0).tolist()]
    assert ops == [wanted] * WORLD
    assert halves == [vectors.sum(0).tolist()] * WORLD


def test_ops_and_half_precision(results):
    check_ops([ops for _, ops, *_ in results], [half for _, _, half, *_ in results])


def test_plans_and_communicators_of_a_part_of_the_ranks(results):
    by_rank = [results[ORDER.index(rank)] for rank in range(WORLD)]
    assert [pair for *_, pair, _ in by_rank] == [[1.0, 5.0]] * 2 + [[3.0, 5.0]] * 2
    parts = [part for *_, part in by_rank]
    assert parts[1] == []
    for place, rank in enumerate((3, 2, 0)):
        assert parts[rank] == [place, [3.0, 2.0, 0.0], 3.0 * place + 50, 2, 5]


def test_a_ring_takes_as_many_rounds_as_steps():
    plan = make_plan("ring", Collective("all_reduce", Topology.parse("star:4"), 40))
    rounds = TorchPlan.of(plan, 0)
    assert [len(steps) for steps in rounds.steps] == [2] * 6


def test_tensors_that_do_not_fit():
    engine = TorchEngine(0, [0], CPU)
    plan = engine.prepare(make_plan("ring", Collective("all_reduce", Topology.parse("star:1"), 4)))
    with pytest.raises(InputError, match="that many elements"):
        engine.start(plan, torch.zeros(5))
    with pytest.raises(InputError, match="there are sum, mean, min, max"):
        engine.start(plan, torch.zeros(4), "product")
    work = engine.start(plan, torch.ones(4), "mean")
    work.cancel()  # too late: it has ended
    assert work.wait().tolist() == [1.0] * 4
