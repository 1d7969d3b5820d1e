"""An executor stands still (SIGSTOP) in the middle of its pull, and nobody has it go on."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import psutil
import pytest

from tests.faults import processes
from tests.faults.application import Application
from tests.faults.held import IDLE_SECONDS, held, more_than


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shared", ["true", "false"])
def test_what_is_held_for_it_is_given_back(application: Application, shared: str) -> None:
    conf = {"spark.sparkdl.comm.timeout": "10s", "spark.sparkdl.comm.ps.sharedMemory": shared}
    assert application.run("ps", conf=conf).error is None
    time.sleep(IDLE_SECONDS)
    before = {executor: held(executor) for executor in processes.executors(application.name)}
    fault = {"action": "stop executor", "rank": 1, "phase": "pull"}
    outcome = application.end("a stopped executor", application.begin("ps", conf=conf, settle=False, **fault))
    outcome.assert_fired("pull", step=3)
    stopped = psutil.Process(outcome.mark["victim"])
    try:
        assert "SparkdlCommError" in outcome.bases, outcome.text
        others = [executor for executor in before if executor != stopped]
        assert len(others) == 2
        assert more_than([before[executor] for executor in others], others) == []
        assert stopped.status() == psutil.STATUS_STOPPED, "it was stopped all the time"
    finally:
        with suppress(ProcessLookupError):
            os.kill(stopped.pid, signal.SIGCONT)
