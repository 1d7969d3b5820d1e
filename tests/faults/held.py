"""What an executor holds, as far as it shows outside of its JVM."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

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


def more_than(before: Sequence[Counter[str]], executors: Sequence[psutil.Process]) -> list[Counter[str]]:
    """What each holds beyond that when it is idle again; empty if there is no such thing."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        more = [held(executor) - least for executor, least in zip(executors, before, strict=True)]
        if not any(more):
            return []
        if time.monotonic() > until:
            return more
        time.sleep(1)
