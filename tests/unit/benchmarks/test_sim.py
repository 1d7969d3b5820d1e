"""Virtual time: events in their order, links that are shared, and trainings that a seed decides."""

import math
from dataclasses import replace

import pytest
from benchmarks.fabric.conditions import FULL_RATE, Conditions
from benchmarks.fabric.simulation.fabric_run import Control, FabricRun, Paced
from benchmarks.fabric.simulation.run import AsyncRun, Job, RingRun, Task, capacities, path

from sparkdl_comm.fabric.core.messages import Piece
from sparkdl_comm.sim.engine import Engine, Links

MEGABYTES = 100_000_000


class Clock:
    """Flows on hosts of one rate, and when they were complete."""

    def __init__(self, hosts: int = 3, rate: float = 10.0) -> None:
        self.engine = Engine()
        self.links = Links(self.engine, capacities([(rate, rate)] * hosts))
        self.ends: dict[str, float] = {}

    def done(self, name: str):
        return lambda: self.ends.setdefault(name, self.engine.now)


def test_events_happen_in_the_order_of_time_and_then_of_making():
    engine, seen = Engine(), []
    engine.at(2.0, lambda: seen.append("late"))
    engine.at(1.0, lambda: (seen.append("first"), engine.after(0.0, lambda: seen.append("third"))))
    engine.at(1.0, lambda: seen.append("second"))
    engine.at(3.0, lambda: seen.append("never"))
    engine.run(3.0)
    assert seen == ["first", "second", "third", "late"]


def test_what_shares_a_link_is_slowed_down_and_the_rest_is_not():
    clock = Clock()
    clock.links.start(path(0, 2), 100, clock.done("a"))
    clock.links.start(path(1, 2), 50, clock.done("b"))
    clock.links.start(path(2, 0), 100, clock.done("other way"))
    clock.links.start(path(1, 1), 100, clock.done("local"))
    clock.engine.run(math.inf)
    assert clock.ends == pytest.approx({"local": 0, "other way": 10, "b": 10, "a": 15})


def test_a_limit_leaves_the_rest_of_the_link_to_others():
    clock = Clock()
    clock.links.start(path(0, 2), 20, clock.done("limited"), limit=2.0)
    clock.links.start(path(1, 2), 80, clock.done("free"))
    clock.engine.run(math.inf)
    assert clock.ends == pytest.approx({"limited": 10, "free": 10})


def test_rates_change_under_way():
    clock = Clock()
    clock.links.start(path(0, 1), 100, clock.done("a"))
    clock.engine.at(5.0, lambda: clock.links.change(capacities([(5.0, 5.0)] * 3)))
    clock.engine.run(math.inf)
    assert clock.ends == pytest.approx({"a": 15})


def test_a_paced_transfer_keeps_to_its_schedule_or_is_late():
    clock = Clock()
    schedule = [Piece(1.0, 2.0, 4.0), Piece(5.0, 6.0, 10.0)]
    Paced(clock.engine, clock.links, path(0, 1), 14, schedule, clock.done("as planned"))
    clock.engine.run(math.inf)
    assert clock.ends == pytest.approx({"as planned": 6})

    clock = Clock(rate=2.0)
    Paced(clock.engine, clock.links, path(0, 1), 14, schedule, clock.done("slow link"))
    clock.engine.run(math.inf)
    assert clock.ends == pytest.approx({"slow link": 10}), "4 bytes until 3 s, 10 from 5 s on"


def test_a_new_schedule_counts_from_what_is_left():
    clock = Clock()
    paced = Paced(clock.engine, clock.links, path(0, 1), 20, [Piece(0.0, 10.0, 2.0)], clock.done("a"))
    sent: list[int] = []
    clock.engine.at(5.0, lambda: (sent.append(paced.sent), paced.repace([Piece(6.0, 7.0, 10.0)])))
    clock.engine.run(math.inf)
    assert (sent, clock.ends) == ([10], pytest.approx({"a": 7}))


def test_conditions_are_those_of_the_setting_and_the_same_for_a_seed():
    conditions = Conditions("C2", "N3", 50, 1, seed=1)
    rates = conditions.rates(3)
    assert rates == Conditions("C1", "N3", 50, 1, seed=1).rates(3) != Conditions("C2", "N3", 50, 1, seed=2).rates(3)
    assert {rate for pair in rates for rate in pair} == {0.1 * FULL_RATE, FULL_RATE}
    assert rates[-1] == (FULL_RATE, FULL_RATE)
    seconds = [conditions.seconds(worker, 1) for worker in range(200)]
    assert set(seconds) == {0.1, 0.4}
    assert 5 <= seconds.count(0.4) <= 40


def _job(compute: str = "C0", network: str = "N0", workers: int = 6, seed: int = 3) -> Job:
    task = Task.points(seed, rows=500, columns=10, classes=3, spread=0.5)
    conditions = Conditions(compute, network, workers, 1, seed)
    return Job(task, conditions, MEGABYTES, 0.9, 0.5, evaluated=6, limit=100)


def test_a_ring_takes_what_it_must():
    outcome = RingRun(_job(), 0).run()
    iterations = outcome.updates / 6
    assert outcome.seconds == pytest.approx(iterations * (0.1 + 2 * 5 / 6 * MEGABYTES / FULL_RATE))
    assert max(outcome.delays) == 6
    twice = RingRun(_job(), 0, passes=2).run()
    assert twice.updates == outcome.updates
    assert twice.seconds == pytest.approx(iterations * (0.1 + 4 * 5 / 6 * MEGABYTES / FULL_RATE))


def test_one_asynchronous_worker_goes_back_and_forth():
    outcome = AsyncRun(replace(_job(workers=1), evaluated=1), 0).run()
    transfers = 2 * outcome.updates - 1
    assert outcome.seconds == pytest.approx(outcome.updates * 0.1 + transfers * MEGABYTES / FULL_RATE)
    assert set(outcome.delays) == {1}


@pytest.mark.parametrize("setting", [("C0", "N0"), ("C2", "N3")])
@pytest.mark.parametrize("text", ["async:8", "bsp", "ssp:1"])
def test_the_fabric_learns_and_a_seed_decides_everything(setting, text):
    def run(seed: int):
        return FabricRun(_job(*setting), seed, text).run()

    outcome = run(1)
    assert outcome.seconds < 100
    assert outcome.accuracy >= 0.9
    assert len(outcome.delays) == outcome.updates
    if text == "async:8":
        assert max(outcome.delays) <= 8
    else:
        assert not outcome.dropped
    again = run(1)
    assert again == outcome
    assert run(2) != outcome


def test_a_replica_gets_what_the_server_gets_summed():
    job = _job("C1", "N1")
    beside = replace(job, conditions=replace(job.conditions, steady=2))
    outcome = FabricRun(beside, 1, "async:50", Control(divergence=1.0)).run()
    assert outcome.accuracy >= 0.9
    assert 0 < outcome.replicated < outcome.updates * MEGABYTES
    assert outcome.norms > 0
    assert FabricRun(job, 1, "async:50").run().replicated == 0


def test_the_fabric_is_synchronous_if_it_is_told_to_be():
    outcome = FabricRun(_job("C2", "N2"), 1, "bsp").run()
    assert outcome.updates % 6 == 0
    assert [sorted(outcome.delays[start : start + 6]) for start in range(0, outcome.updates, 6)] == [
        list(range(1, 7))
    ] * (outcome.updates // 6)
