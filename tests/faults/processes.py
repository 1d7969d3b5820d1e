"""The processes of one Spark application, known by a variable in their environment that all of them inherit."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

VARIABLE = "SPARKDL_FAULTS_APPLICATION"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def of_application(name: str) -> list[psutil.Process]:
    """All processes of application `name` that are alive."""
    found = []
    for process in psutil.process_iter():
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if f"{VARIABLE}={name}".encode() in environ and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (OSError, psutil.Error):
            continue  # it went away, or is not ours
    return found


def executors(name: str) -> list[psutil.Process]:
    """Those of application `name`, whatever started them."""
    return [process for process in of_application(name) if _EXECUTOR in command(process)]


def command(process: psutil.Process) -> list[str]:
    """What it was started with; nothing of one that is gone."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def bridge_sockets(executor: int) -> list[str]:
    """Path of the bridge's socket, for that which listens and for each connection of a worker."""
    links = psutil.Process(executor).net_connections("unix")
    return [link.laddr for link in links if os.path.basename(link.laddr) == "bridge"]


def bridge_directory(executor: int) -> str:
    """The one of an executor; "" without the plugin, and for other processes."""
    return next((os.path.dirname(path) for path in bridge_sockets(executor)), "")


def holds_segment(process: psutil.Process) -> bool:
    """Whether the process maps, or has open, memory that a rank shares with its executor."""
    try:
        if "memfd:sparkdl" in Path(f"/proc/{process.pid}/maps").read_text():
            return True
        for fd in Path(f"/proc/{process.pid}/fd").iterdir():
            if "memfd:sparkdl" in os.readlink(fd):
                return True
    except OSError:
        pass
    return False


def is_orphan(process: psutil.Process, driver: int) -> bool:
    """A Python process that no JVM of the application looks after any more."""
    try:
        if process.pid == driver or not process.name().startswith("python"):
            return False
        return not any(parent.name() == "java" for parent in process.parents())
    except psutil.Error:
        return False


def leftovers(name: str, driver: int) -> list[str]:
    """What should not be there after a run has failed, in words."""
    found = []
    for process in of_application(name):
        try:
            if holds_segment(process):
                found.append(f"{process.name()} {process.pid} maps a segment")
            if is_orphan(process, driver):
                found.append(f"{process.name()} {process.pid} is an orphan (child of {process.ppid()})")
        except psutil.Error:
            continue
    return found


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
