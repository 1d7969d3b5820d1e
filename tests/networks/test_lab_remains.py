"""Nothing is left of a lab, however its programs, its block or its process ends."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from lab import Lab, remove, state

from sparkdl_comm.errors import DeadlineError, LabError
from tests.networks.lab_helpers import left_of


def test_ranks_that_do_not_end_are_killed_with_their_children(networks):
    with Lab("star:2,100mbit") as lab:
        with pytest.raises(DeadlineError, match=r"ranks 0, 1 of 2 did not end within timeout=1 s .* last: hm"):
            lab.run(["sh", "-c", "echo hm >&2; sleep 61 & sleep 62"], timeout=1)
        for host in (0, 1):
            assert lab.access.run("ip", "netns", "pids", lab.layout.node(host).namespace) == ""


def test_nothing_is_left_after_an_exception(networks):
    lab = Lab("star:2,100mbit")
    started = []

    def fail():
        started.append(lab.popen(0, ["setsid", "sleep", "63"]))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), lab:
        fail()
    started[0].wait(5)  # 0 if setsid had forked already: what it leaves is what counts
    assert left_of(lab.name) == []


def test_nothing_is_left_if_setting_up_fails(networks, monkeypatch):
    lab = Lab("star:2,100mbit")
    monkeypatch.setattr(type(lab.layout), "switch_lines", lambda self: ["link add nonsense"])
    with pytest.raises(LabError, match="failed"), lab:
        pass
    assert left_of(lab.name) == []


# --- processes that end otherwise ---------------------------------------------------------------------------------

HOLD = """
import signal, subprocess, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup and shells' background jobs have them ignored, here too
signal.signal(signal.SIGINT, signal.default_int_handler)
from lab import Lab
with Lab("star:2,100mbit", name=sys.argv[1], mode=sys.argv[2] or None) as lab:
    lab.popen(1, ["sleep", "64"])
    print("up", flush=True)
    time.sleep(60)
"""


def start(name, mode=""):
    process = subprocess.Popen([sys.executable, "-c", HOLD, name, mode], stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    process.stdout.close()
    assert line == "up\n", process.wait(10)
    return process


@pytest.fixture
def name():
    return f"test-{os.getpid()}-{time.monotonic_ns() % 10**6}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_is_left_after_a_signal(networks, name, number):
    process = start(name)
    process.send_signal(number)
    assert process.wait(20) != 0
    assert left_of(name) == []


@pytest.mark.parametrize("how", ["root", "userns"])
def test_what_a_killed_program_left_can_be_removed_and_only_that(networks, name, how):
    if how == "root" and os.geteuid() != 0:
        pytest.skip("not root")
    with Lab("star:2,100mbit") as other:
        process = start(name, how)
        with pytest.raises(LabError, match=f"in use by process {process.pid}; --force"):
            remove(name)
        with pytest.raises(LabError, match="a lab '.*' already, of process"), Lab("star:2,100mbit", name=name):
            pass
        assert len(Lab.attach(name).rates()) == 3
        process.kill()
        process.wait(10)
        assert name in left_of(name)  # or there would be nothing to remove
        with pytest.raises(LabError, match="left by process .*sparkdl-lab down"), Lab("star:2,100mbit", name=name):
            pass
        with pytest.raises(LabError, match="left by process"):
            Lab.attach(name)
        holder = state.load(name).holder
        remove(name)
        assert left_of(name) == []
        assert holder is None or state.start_time(holder) is None
        assert len(other.rates()) == 3
        other.run(["true"], timeout=10)
    with pytest.raises(LabError, match=f"no lab '{name}'"):
        remove(name)


def test_force_ends_the_owner_too(networks, name):
    process = start(name)
    reaper = threading.Thread(target=process.wait)
    reaper.start()
    remove(name, force=True)
    reaper.join(10)
    assert process.returncode != 0
    assert left_of(name) == []
