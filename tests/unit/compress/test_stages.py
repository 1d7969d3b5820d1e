"""Stages begin in one order, whatever is complete first, and failures reach who waits."""

import threading
import time

import pytest

from sparkdl_comm.compress.stages import StageRunner
from sparkdl_comm.compress.sums import density_at
from sparkdl_comm.conf import CommConf, CompressionSchedule
from sparkdl_comm.errors import GangError


def exchange(name, begun, waits, number=3):
    for stage in range(number):
        begun.append(f"{name}{stage}")
        yield
        if waits is not None:
            waits.wait(5)
    begun.append(f"{name}.")


def test_order():
    begun: list[str] = []
    first = threading.Event()
    stages = StageRunner("test")
    staged = [
        stages.start(exchange("a", begun, first), is_last=False),
        stages.start(exchange("b", begun, None), is_last=False),
        stages.start(exchange("c", begun, None), is_last=True),
    ]
    first.set()
    for one in staged:
        one.wait()
    assert begun == ["a0", "b0", "a1", "c0", "b1", "a2", "c1", "b2", "a.", "c2", "b.", "c."]
    stages.close(5)


def test_a_failure_reaches_those_under_way_and_those_to_come():
    def fails():
        yield
        raise ValueError("so it is")

    begun: list[str] = []
    stages = StageRunner("test")
    told = []
    before = stages.start(exchange("a", begun, None, 5), is_last=False)
    failing = stages.start(fails(), is_last=True)
    after = stages.start(exchange("c", begun, None), is_last=True)
    after.then(told.append)
    for one in (failing, before, after):
        with pytest.raises(ValueError, match="so it is"):
            one.wait()
    until = time.monotonic() + 5
    while not told and time.monotonic() < until:
        time.sleep(0.01)
    assert told == [after]
    assert not any(name.startswith("c") for name in begun)
    failing.then(told.append)
    assert told == [after, failing]
    stages.close(5)


def test_who_waits_hears_that_it_was_closed():
    stages = StageRunner("test")
    stages.close(5)
    with pytest.raises(GangError, match="closed"):
        stages.start(exchange("a", [], None), is_last=True).wait()


@pytest.mark.parametrize(
    ("text", "densities"),
    [
        ("always", {(1, 1): 0.01, (99, 9): 0.01}),
        ("steps:3-5", {(2, 1): None, (3, 1): 0.01, (5, 1): 0.01, (6, 1): None}),
        ("epochs:2-", {(9, 1): None, (10, 2): 0.01, (999, 99): 0.01}),
        ("warmup:6", {(1, 1): 0.25, (2, 1): 0.25, (3, 1): 0.0625, (5, 1): 0.015625, (6, 1): 0.015625, (7, 1): 0.01}),
        (
            "steps:11-, warmup:3, epochs:1-2",
            {(10, 1): None, (11, 1): 0.25, (12, 2): 0.0625, (14, 2): 0.01, (15, 3): None},
        ),
    ],
)
def test_schedule(text, densities):
    schedule = CommConf.from_mapping({"spark.sparkdl.comm.compression.schedule": text}).compression.schedule
    assert {at: density_at(schedule, 0.01, *at) for at in densities} == densities
    assert CommConf.from_mapping({}, compression_schedule=schedule).compression.schedule == schedule


def test_a_warm_up_to_a_density_that_it_begins_with_is_none():
    assert density_at(CompressionSchedule(warmup=10), 0.5, 1, 1) == 0.5
