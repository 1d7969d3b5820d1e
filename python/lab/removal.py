"""Removal of labs: at the end of a program, on a signal, and after a killed program."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from lab import state
from lab.access import COMMAND_SECONDS, Access, close_access
from lab.layout import Layout
from sparkdl_comm.errors import DeadlineError, LabError
from sparkdl_comm.topology import Topology

_TERMINATING = (signal.SIGTERM, signal.SIGHUP)


def remove(name: str, force: bool = False) -> None:
    """Remove the processes, namespaces and state of a lab whose owner is gone or only keeps it.

    :param force: also remove a lab that its owner uses. That process fails then.
    :raises LabError: no such lab, or it is in use and not ``force``.
    """
    found = state.load(name)
    if found.alive and not (found.kept or force):
        raise LabError(f"lab {name!r} is in use by process {found.owner}; --force removes it all the same")
    if found.alive:
        os.kill(found.owner, signal.SIGTERM)
        with contextlib.suppress(DeadlineError):
            _until(lambda: not found.alive, f"process {found.owner} to end")
        if found.alive:
            os.kill(found.owner, signal.SIGKILL)
            _until(lambda: not found.alive, f"process {found.owner} to die")
    if any(left == found for left in state.every()):
        access = Access(found.holder if found.holder_alive else None)
        if found.holder is None or found.holder_alive:
            tear_down(access, layout_of(found))
            close_access(access)
            _until(lambda: not found.holder_alive, f"process {found.holder} to die")
        state.forget(name)


def tear_down(access: Access, layout: Layout) -> None:
    """Kill all processes in the namespaces, and remove the namespaces and the state. Signals have to wait."""
    with _signals_later():
        there = set(access.run("ip", "netns", "list").replace("(", " ").split())
        namespaces = [namespace for namespace in layout.namespaces if namespace in there]
        _until(lambda: not _kill_inside(access, namespaces), f"the processes of lab {layout.name!r} to die")
        links = {row["ifname"] for row in json.loads(access.run("ip", "-json", "link", "show"))}
        lines = [f"link del {layout.uplink}"] if layout.uplink in links else []
        access.batch("ip", lines + [f"netns del {namespace}" for namespace in namespaces])
        state.forget(layout.name)


def _kill_inside(access: Access, namespaces: Sequence[str]) -> bool:
    """Kill all processes in the namespaces. Return True if there were any."""
    found = False
    for namespace in namespaces:
        for pid in access.run("ip", "netns", "pids", namespace).split():
            found = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    return found


def _until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + COMMAND_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise DeadlineError(f"waited {COMMAND_SECONDS:g} s for {what}")
        time.sleep(0.02)


def layout_of(found: state.State) -> Layout:
    """Return the layout of a lab, from its state."""
    return Layout(found.name, Topology.parse(found.topology), found.control, found.mtu)


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Let signals raise SystemExit in the main thread, if they would end this process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    ours = [number for number in _TERMINATING if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_TERMINATING})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
