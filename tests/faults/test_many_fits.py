"""What an executor holds does not grow with the fits that it had, well ended or not."""

from __future__ import annotations

import time

import pytest

from tests.faults import processes
from tests.faults.application import Application
from tests.faults.held import IDLE_SECONDS, held, more_than

FITS = 20


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
    assert more_than(before, executors) == [], f"more than {before} after {FITS} fits of each kind"
