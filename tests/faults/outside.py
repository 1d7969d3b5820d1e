"""Faults that the test's process strikes: signals to a rank, to its executor, to the driver; connections of executors cut."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.faults import processes, wire
from tests.faults.application import Application
from tests.faults.cases import Case

#: How long a fit may take to its first step.
_START_SECONDS = 60.0
#: Of a slow process: it runs and stands still in turns, for so long in all.
_RUNS_SECONDS, _STANDS_SECONDS, _SLOW_SECONDS = 0.03, 0.12, 4.0


def can_cut() -> bool:
    """Whether connections of other processes can be ended here: with ss, by root."""
    return os.geteuid() == 0 and shutil.which("ss") is not None


class Outside:
    """One fault from outside. `strike` waits for its moment; `relent` when the fit has ended."""

    def __init__(self, case: Case, application: Application, marker: Path) -> None:
        self._case, self._application, self._marker = case, application, marker
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._undo: list[Callable[[], Any]] = []

    def strike(self) -> None:
        """Does not, and leaves no marker, if the fit ends before."""
        case = self._case
        if case.since == "first step" and not self._wait_for(Path(f"{self._marker}.steps")):
            return
        since = self._begun if case.since == "fit" else time.monotonic()
        time.sleep(max(0.0, since + case.milliseconds / 1000 - time.monotonic()))
        if self._application.has_answered():
            return
        facts: dict[str, Any] = {"at": time.monotonic(), "phase": case.since, "step": None, "in_flight": None}
        action, victim = case.fault.split()[0], case.fault.split()[-1]
        try:
            facts["struck"] = self._do(action, victim, facts)
        except (psutil.NoSuchProcess, ProcessLookupError):  # the fit ends just now
            return
        if facts["struck"]:
            self._marker.write_text(json.dumps(facts))

    def relent(self) -> None:
        """What was stopped goes on."""
        self._over.set()
        for undo in self._undo:
            try:
                undo()
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue  # Spark has killed it meanwhile

    def _do(self, action: str, victim: str, facts: dict[str, Any]) -> Any:
        if action == "interrupt":
            driver = self._application.pid
            os.killpg(driver, signal.SIGINT) if victim == "all" else os.kill(driver, signal.SIGINT)
            return True
        if victim == "driver":
            java = [child.pid for child in psutil.Process(self._application.pid).children()]
            for pid in (*java, self._application.pid):
                os.kill(pid, signal.SIGKILL)
            return True
        pid = self._rank()["pid" if victim == "worker" else "executor"]
        facts["victim"] = pid
        if action == "kill":
            facts["bridge"] = processes.bridge_directory(pid)
            os.kill(pid, signal.SIGKILL)
        elif action == "stop":
            self._undo.append(lambda: os.kill(pid, signal.SIGCONT))
            os.kill(pid, signal.SIGSTOP)
        elif action == "slow":
            thread = threading.Thread(target=self._slow_down, args=(pid,), daemon=True)
            self._undo += [thread.join, lambda: os.kill(pid, signal.SIGCONT)]
            thread.start()
        elif action == "cut":
            return self._cut(pid)
        return pid

    def _slow_down(self, pid: int) -> None:
        until = time.monotonic() + _SLOW_SECONDS
        try:
            while time.monotonic() < until and not self._over.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(_STANDS_SECONDS)
                os.kill(pid, signal.SIGCONT)
                time.sleep(_RUNS_SECONDS)
        except ProcessLookupError:
            return

    def _cut(self, pid: int) -> list[Any]:
        """All connections that the executor has to other ones."""
        executors = processes.executors(self._application.name)
        others = {address for other in executors if other.pid != pid for address in wire.addresses(other.pid)}
        done = []
        for link in psutil.Process(pid).net_connections("tcp"):
            if link.raddr and wire.plain(link.raddr) in others:
                which = f"( sport = :{link.laddr[1]} and dport = :{link.raddr[1]} )"
                subprocess.run(["ss", "-K", "-t", which], check=True, capture_output=True, timeout=10)
                done.append([link.laddr[1], link.raddr[1]])
        return done

    def _rank(self) -> dict[str, int]:
        """The newest process of the rank."""
        lines = Path(f"{self._marker}.ranks").read_text().splitlines()
        return [told for told in map(json.loads, lines) if told["rank"] == self._case.rank][-1]

    def _wait_for(self, file: Path) -> bool:
        until = self._begun + _START_SECONDS
        while not file.exists():
            if self._application.has_answered() or time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True
