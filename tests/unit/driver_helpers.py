"""Rank 0's end of the connection to a listener of the driver."""

from __future__ import annotations

import time

from sparkdl_comm.job.driver_client import DriverClient
from sparkdl_comm.job.driver_listener import DriverListener
from tests.unit.gang_helpers import SECONDS, SECRET


def soon(seconds: float = SECONDS) -> float:
    return time.monotonic() + seconds


def connect(listener: DriverListener, attempt: str = "e/0", **more) -> DriverClient:
    return DriverClient.connect(listener.address, SECRET, attempt, SECONDS, **more)
