"""A fault: who it is for, where and when it strikes, and how; runs in the rank that it is for.

It writes a marker, a JSON file, just before it strikes. Times are of CLOCK_MONOTONIC, which all processes share.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from sparkdl_comm.fabric import process
from tests.faults import wire

STALL_SECONDS = 45.0

BOOM = "the camera of rank 1 is unplugged"

#: What :func:`tests.faults.injection.disarm` calls, the last one first: undoes what would outlive the run.
undo: list[Callable[[], None]] = []


@dataclass(frozen=True)
class Fault:
    """`action`: kill worker, kill executor, kill driver, kill aggregator, kill server (which are beside the rank), exit,
    sys.exit, raise, raise connection, nan, stall, stop, stop executor, one of :data:`tests.faults.wire.ACTIONS`, or "outside":
    somebody else strikes. `step` counts from 0; that of a checkpoint is in its name. `driver`: its process. `pause`: seconds
    that every forward pass takes longer. `pick`: 0 to 1, which connection or byte it is, for those of `wire`."""

    action: str
    rank: int
    phase: str
    marker: str
    step: int = 3
    driver: int = 0
    pause: float = 0.0
    pick: float = 0.0

    @property
    def ranks(self) -> str:
        """A file with a line, JSON, for each rank that begins: its process and its executor's."""
        return f"{self.marker}.ranks"

    @property
    def first_steps(self) -> str:
        """A file with a line, JSON, for each rank's first step, also of the gang that is started again."""
        return f"{self.marker}.steps"


def strike(fault: Fault, step: int, in_flight: bool | None = None) -> str | None:
    victims, facts = [os.getpid()], {}
    if fault.action in ("kill executor", "stop executor"):
        victims = [executor_of_this_worker()]
        if fault.action.startswith("kill"):
            facts["bridge"] = _bridge_directory()
    elif fault.action == "kill driver":
        # Its JVM first: it is at once the cluster's master and workers, and would end in good order without its parent.
        victims = [*(child.pid for child in psutil.Process(fault.driver).children()), fault.driver]
    elif fault.action in ("kill aggregator", "kill server"):
        beside = nodes_of_this_worker()
        victims = [beside[0] if fault.action == "kill aggregator" else beside[-1]]
    facts.update(phase=fault.phase, step=step, pid=os.getpid(), victim=victims[-1], in_flight=in_flight)
    if fault.action in wire.ACTIONS:
        facts["struck"], undo_it = wire.ACTIONS[fault.action](fault.pick, executor_of_this_worker())
        undo.append(undo_it)
    _mark(fault, facts)
    if fault.action.startswith("kill"):
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
    elif fault.action == "exit":
        os._exit(3)
    elif fault.action == "sys.exit":
        sys.exit("the user's code gives up")
    elif fault.action == "raise":
        raise LookupError(BOOM)  # this very line
    elif fault.action == "raise connection":
        raise ConnectionResetError("connection reset by the camera")
    elif fault.action == "stall":
        time.sleep(STALL_SECONDS)
    elif fault.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.action == "stop executor":
        os.kill(victims[0], signal.SIGSTOP)
    return fault.action


def executor_of_this_worker() -> int:
    return next(parent.pid for parent in psutil.Process().parents() if parent.name() == "java")


def nodes_of_this_worker() -> list[int]:
    """Processes of strategy fabric: aggregators, then the server or replica, if there is one."""
    children = sorted(psutil.Process().children(), key=lambda child: child.create_time())
    return [child.pid for child in children if process.__name__ in child.cmdline()]


def _bridge_directory() -> str:
    """Where the executor of this process has the socket of its bridge."""
    from sparkdl_comm.jvm.bridge import ADVERTISEMENT

    first = os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
    with open(os.path.join(first, ADVERTISEMENT)) as file:
        return os.path.dirname(json.load(file)["socket"])


def _mark(fault: Fault, facts: dict[str, Any]) -> None:
    temporary = f"{fault.marker}.{os.getpid()}"
    with open(temporary, "w") as file:
        json.dump({**facts, "at": time.monotonic()}, file)
    with suppress(FileExistsError):  # a fault strikes once
        os.link(temporary, fault.marker)
    os.unlink(temporary)
