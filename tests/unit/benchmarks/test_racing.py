"""Races: what the benchmark `fabric` lets learn together, in threads; and what it reckons."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from benchmarks.fabric import systems
from benchmarks.fabric.conditions import Computing, RaceConditions, SteadyServer
from benchmarks.fabric.digits import Digits
from benchmarks.fabric.races import Race, System
from benchmarks.fabric.systems import Curve, Moment, Start, first, serve_fabric, work_on_fabric
from benchmarks.fabric.topics import Topics
from lab import LinkRate
from lab.rates import DISTRIBUTIONS, RateSchedule

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.networks import digits_28x28
from sparkdl_comm.topology import Topology
from tests.unit.collective_helpers import on_all
from tests.unit.fabric_helpers import raised, run
from tests.unit.gang_helpers import SECONDS, gang_of

WORKERS, UPDATES = 3, 120
RACE = Race("fabric", WORKERS, UPDATES, 0.1, "C2", 3, SECONDS, "data.npz", "begun")


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits(*digits_28x28(), seed=3)


def alone(task: Digits) -> np.ndarray:
    """What one process makes of the updates of all workers, in step."""
    model, learners = task.start(), [task.learner(worker, WORKERS) for worker in range(WORKERS)]
    for _ in range(UPDATES // WORKERS):
        model = model + sum(learner.update(model) for learner in learners)
    return model


def learned(curve: Curve, task: Digits) -> list[Moment]:
    moments = curve.moments(task.score)
    assert moments[-1].updates == UPDATES
    assert moments[0].score < 0.4 < 0.6 < moments[-1].score
    return moments


@pytest.mark.slow
def test_the_ring_is_what_one_process_does(digits: Digits) -> None:
    conf = CommConf.from_mapping({}, topology=f"star:{WORKERS}", timeout=f"{SECONDS}s")
    begun: list[Curve] = []

    def begin() -> Curve:
        begun.append(Curve(WORKERS))
        return begun[0]

    with gang_of(WORKERS, rails=("lo",)) as gangs:
        curves = on_all(gangs, lambda gang: systems.train_by_ring(gang, conf, digits, UPDATES, nullcontext, begin))
    raised(curves)
    learned(curves[0], digits)
    assert np.allclose(curves[0].last, alone(digits), atol=1e-4)
    assert curves == [*begun, None, None], "the clock of one rank counts"


@pytest.mark.slow
def test_plain_asynchronous_training_learns(digits: Digits) -> None:
    store = dist.HashStore()
    curve = Curve(WORKERS)
    serving = systems.Serving(digits, UPDATES, curve)

    def one(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, WORKERS + 1, timedelta(seconds=SECONDS))
        if rank == WORKERS:
            serving.run(group)
        else:
            systems.work_for_server(group, digits, digits.learner(rank, WORKERS), UPDATES, nullcontext)

    raised(on_all(list(range(WORKERS + 1)), one))
    assert UPDATES <= serving.version < UPDATES + WORKERS
    assert 1 <= serving.largest_delay <= serving.version
    assert curve.moments(digits.score)[-1].score > 0.6


@pytest.mark.slow
def test_the_fabric_learns(digits: Digits) -> None:
    params, curve = FabricParams("bsp"), Curve(WORKERS)

    def rank_of(worker: int):
        def learn(fabric) -> int:
            with fabric:
                made = fabric.register_as_worker(params, 0)
                return work_on_fabric(made, WORKERS, digits.learner(worker, WORKERS), UPDATES, nullcontext)

        return learn

    def server(fabric) -> None:
        serve_fabric(fabric.register_as_server(params, digits.start()), curve)

    results, _ = run([*map(rank_of, range(WORKERS)), server])
    raised(results)
    learned(curve, digits)
    assert np.allclose(curve.last, alone(digits), atol=1e-4)
    assert results[:WORKERS] == [0] * WORKERS


def test_a_curve_has_copies_of_a_model_that_changes() -> None:
    curve = Curve(3, iter(range(10, 20)).__next__)
    model = np.zeros(1, np.float32)
    for updates in (1, 2, 4, 5, 9):
        model[0] = updates
        curve.add(updates, model)
    moments = curve.moments(lambda copy: float(copy[0]))
    assert moments == [Moment(1, 1, 1.0), Moment(2, 4, 4.0), Moment(3, 9, 9.0)]
    assert first(moments, lambda score: score > 3) == moments[1]
    assert first(moments, lambda score: score > 9) is None


def step_seconds(seconds: float, setting: str, seed: int, worker: int) -> list[float]:
    """Of 200 steps, to the microsecond."""
    now = 0.0

    def sleep(wait: float) -> None:
        nonlocal now
        now += wait

    computing = Computing(seconds, setting, seed, worker, lambda: now, sleep)
    taken = []
    for _ in range(200):
        begun = now
        with computing.step():
            sleep(0.1)
        taken.append(round(now - begun, 6))
    return taken


def test_stragglers_are_slow_and_drawn_by_the_seed() -> None:
    found = step_seconds(0.5, "C2", 1, 2)
    assert set(found) == {0.5, 2.0}
    assert 5 <= found.count(2.0) <= 40
    assert found == step_seconds(0.5, "C2", 1, 2) != step_seconds(0.5, "C2", 1, 3)


def test_workers_have_the_same_rates_with_a_server_and_without() -> None:
    shares = DISTRIBUTIONS["N3"]
    alone, beside = (Topology.parse(f"star:{hosts}").with_rates(10**8) for hosts in (3, 4))
    for step in range(20):
        rates = SteadyServer(shares, seed=7, workers=3).draw(step, beside)
        assert rates.pop((3, 0)) == LinkRate(10**8, 10**8)
        assert rates == RateSchedule(shares, seed=7).draw(step, alone)


def test_the_simulator_can_take_what_a_race_draws() -> None:
    conditions = RaceConditions("C2", "N2", hosts=3, steady=1, seed=7, computing=0.5)
    topology = Topology.parse("star:4").with_rates(10**10)
    for period in range(20):
        links = SteadyServer(DISTRIBUTIONS["N2"], seed=7, workers=3).draw(period, topology)
        assert conditions.rates(period) == [(links[host, 0].up / 8, links[host, 0].down / 8) for host in range(4)]
    raced = step_seconds(0.5, "C2", 7, 2)
    assert [conditions.seconds(2, iteration) for iteration in range(1, len(raced) + 1)] == raced
    assert conditions.seconds(2, 5) == raced[4]


def test_a_race_has_its_conf() -> None:
    conf = RACE.conf("star:4")
    assert (conf.fabric.link_rate, conf.fabric.batch_interval, conf.timeout) == ("100mbit", 0.1, SECONDS)


@pytest.mark.parametrize(
    ("name", "sync", "bound"),
    [("fabric", "async:30", 30), ("fabric-45", "async:45", 45), ("fabric-bsp", "bsp", None), ("ddp", "", None)],
)
def test_names_of_systems(name: str, sync: str, bound: int | None) -> None:
    system = System.parse(name)
    assert (system.name, system.sync, system.delay_bound) == (name, sync, bound)
    assert system.has_server == name.startswith("fabric")


@pytest.mark.parametrize("name", ["gloo", "fabric-0", "fabric-ssp", "ring-2"])
def test_systems_that_there_are_not(name: str) -> None:
    with pytest.raises(ConfError, match=name[-1]):
        System.parse(name)


def test_digits_are_told_apart_by_their_seed(digits: Digits) -> None:
    same, other = (Digits(digits.pixels, digits.labels, seed) for seed in (3, 4))
    assert np.array_equal(same.start(), digits.start())
    assert not np.array_equal(other.start(), digits.start())


def test_ranks_read_what_is_learned_from_a_file(digits: Digits, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, pixels=digits.pixels.numpy(), labels=digits.labels.numpy())
    read = replace(RACE, data=str(path)).task()
    assert isinstance(read, Digits)
    assert torch.equal(read.pixels, digits.pixels)
    assert read.score(read.start()) == digits.score(digits.start())
    documents = np.array([[0, 1, 1, 2], [2, -1, -1, -1]], np.int32)
    np.savez(path, training=documents, held_out=documents[:1], words=3)
    topics = replace(RACE, data=str(path), topics=2).task()
    assert isinstance(topics, Topics)
    assert (topics.elements, topics.training.tolist()) == (6, documents.tolist())


def test_a_race_begins_when_the_rank_with_the_clock_says_so(tmp_path: Path) -> None:
    over, seen = threading.Event(), []
    here, there = Start(tmp_path / "begun", WORKERS), Start(tmp_path / "begun", WORKERS)
    waiting = threading.Thread(target=lambda: seen.append(here.wait(over)))
    waiting.start()
    assert not seen
    there.begin()
    waiting.join(SECONDS)
    assert seen == [None]
    assert 0.0 <= there.busy_cores() <= psutil.cpu_count() + 0.5
    over.set()
    Start(tmp_path / "never", WORKERS).wait(over)
