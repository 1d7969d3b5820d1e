"""What an executor holds does not grow with the fits that it had, well ended or not."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.faults import processes
from tests.faults.application import Application

FITS = 20
#: Seconds: the transport with its threads and ports goes after half a minute, an idle thread of the pool after one.
IDLE_SECONDS, SETTLE_SECONDS = 65.0, 120.0


def held(executor: psutil.Process) -> Counter[str]:
    """Descriptors that are open, threads of ours that run, and mappings of what ranks share with their executor."""
    of = Path(f"/proc/{executor.pid}")
    threads = []
    for task in of.joinpath("task").iterdir():
        with suppress(FileNotFoundError):  # it has just ended
            threads.append(task.joinpath("comm").read_text())
    return Counter(
        descriptors=len(os.listdir(of / "fd")),
        threads=sum(name.startswith("sparkdl") for name in threads),
        mappings=of.joinpath("maps").read_text().count("memfd:sparkdl"),
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_fits_leave_no_more_than_two(application: Application) -> None:
    def fits(count: int) -> None:
        for number in range(count):
            conf = {"spark.sparkdl.comm.ps.sharedMemory": "false" if number % 2 else "true"}
            assert application.run("ps", conf=conf).error is None
            application.run("ps", conf=conf, action="raise", rank=1, phase="forward").assert_typed("RankFailedError")

    fits(2)
    time.sleep(IDLE_SECONDS)  # else what is still open would hide as much that leaks
    executors = processes.executors(application.name)
    assert len(executors) == 3
    before = [held(executor) for executor in executors]
    fits(FITS)
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        more = [held(executor) - least for executor, least in zip(executors, before, strict=True)]
        if not any(more):
            break
        assert time.monotonic() < until, f"more than {before} after {FITS} fits of each kind: {more}"
        time.sleep(1)
