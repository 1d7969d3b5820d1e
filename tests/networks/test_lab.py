"""Labs of network namespaces: shape, addresses, programs, rates, counters, and what is refused."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from lab import Lab, LinkRate, Place, RateSchedule, access, state

from sparkdl_comm.errors import ConfError, LabError, LabUnavailableError, RankFailedError
from tests.networks.lab_helpers import left_of

MBIT = 10**6
ROOT = Path(__file__).parents[2]

# Each rank sends `size` bytes to its neighbours over every rail, and says how much it received.
EXCHANGE = """
import socket, sys, threading
from lab import Place
here, size = Place.here(), int(sys.argv[1])
jobs = [(rail, other) for rail in range(here.topology.rails) for other in here.topology.neighbors(here.rank, rail)]
servers = [socket.create_server((address, here.port + here.rank)) for address in here.addresses]
def send(rail, other):
    for attempt in range(100):
        try:
            connection = socket.create_connection((here.peers[other][rail], here.port + other), 5)
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.05)
    with connection:
        connection.sendall(bytes(size))
threads = [threading.Thread(target=send, args=job) for job in jobs]
[thread.start() for thread in threads]
total = 0
for rail, _ in jobs:
    servers[rail].settimeout(20)
    connection, _ = servers[rail].accept()
    while chunk := connection.recv(1 << 20):
        total += len(chunk)
[thread.join() for thread in threads]
print(total)
"""


@pytest.mark.parametrize("topology", ["star:3", "bcube:2x3", "hosts:2x2", "fattree:2"])
def test_ranks_exchange_bytes_over_every_rail_and_counters_see_them(networks, topology):
    size = 300_000
    with Lab(topology, rate="200mbit") as lab:
        results = lab.run([sys.executable, "-c", EXCHANGE, str(size)], timeout=60)
        counters = lab.counters()
        shape = lab.topology
    assert len(results) == shape.world
    for rank, result in enumerate(results):
        expected = size * sum(len(shape.neighbors(rank, rail)) for rail in range(shape.rails))
        assert result.stdout == f"{expected}\n"
    for host in shape.hosts:
        for rail in range(shape.rails):
            expected = size * sum(len(shape.neighbors(rank, rail)) for rank in host.ranks)
            for counted in (counters[host.index, rail].sent, counters[host.index, rail].received):
                assert expected <= counted <= 1.1 * expected + 20_000  # headers, handshakes, acknowledgements
    assert left_of(lab.name) == []


def test_hosts_that_share_no_switch_are_reached_through_others(networks):
    listen = "import socket; s = socket.create_server(('', 5000)); s.settimeout(20); c, p = s.accept(); print(p[0])"
    connect = (
        "import socket, sys, time\n"
        "for _ in range(100):\n"
        "    try: socket.create_connection((sys.argv[1], 5000), 5).close(); break\n"
        "    except ConnectionRefusedError: time.sleep(0.05)\n"
    )
    with Lab("bcube:2,2", rate="200mbit") as lab:
        environment = dict(os.environ)
        for start, end in ((0, 3), ("head", 3)):
            programs = [
                (end, [sys.executable, "-c", listen], environment),
                (start, [sys.executable, "-c", connect, lab.address(end)], environment),
            ]
            assert lab.run_each(programs, timeout=30)[0].stdout.startswith("10.")


def test_in_a_user_namespace(networks):
    try:
        lab = Lab("star:2", rate="100mbit", mode="userns")
        with lab:
            holder = lab.access.holder
            results = lab.run([sys.executable, "-c", EXCHANGE, "1000"], timeout=60)
            assert left_of(lab.name) == [lab.name]  # the state; namespaces are where we do not see them
    except LabUnavailableError as error:
        pytest.skip(str(error))
    assert [result.stdout for result in results] == ["1000\n", "1000\n"]
    assert state.start_time(holder) is None
    assert left_of(lab.name) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="already not root")
def test_as_a_user_without_privileges(networks):
    run = ["run", "--topology", "star:2,100mbit", "--", "sh", "-c", "ip -brief addr show rail0"]
    nobody = {"user": "nobody", "group": "nogroup", "extra_groups": [], "cwd": "/"}
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}:{ROOT / 'python'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for python in (sys.executable, "/usr/bin/python3"):  # one that this user may run
        try:
            tried = subprocess.run([python, "-c", "import lab.network"], env=environment, **nobody)
        except OSError:
            continue
        if tried.returncode == 0:
            break
    else:
        pytest.skip("nobody may run no Python here that has what labs need")
    done = subprocess.run(
        [python, str(ROOT / "python" / "sparkdl-lab"), *run],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        **nobody,
    )
    if "no permission to make network namespaces" in done.stderr:
        pytest.skip("no unprivileged user namespaces here")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["10.1.0.1/24", "10.1.0.2/24"]


def test_loopback_runs_the_same_programs():
    with Lab.loopback("bcube:2,2") as cluster:
        results = cluster.run([sys.executable, "-c", EXCHANGE, "1000"], timeout=60)
    assert [result.stdout for result in results] == ["2000\n"] * 4


def test_rates_can_be_changed_while_it_runs(networks):
    with Lab("star:2,200mbit") as lab:
        assert lab.rates()[1, 0] == LinkRate(200 * MBIT, 200 * MBIT)
        lab.set_rate(1, up="20mbit")
        assert lab.rates()[1, 0] == LinkRate(20 * MBIT, 200 * MBIT)
        assert lab.rates()[0, 0] == LinkRate(200 * MBIT, 200 * MBIT)
        with pytest.raises(ConfError, match="rate 1kbit: must be from 1mbit to 10gbit"):
            lab.set_rate(1, down="1kbit")
        with pytest.raises(ConfError, match="rail 1: host 0 of .* has 1"):
            lab.set_rate(0, 1, up="20mbit")


def test_a_schedule_redraws_all_rates_and_ends_with_the_nominal_ones(networks):
    schedule = RateSchedule.named("N3", period=0.2, seed=5)
    with Lab("star:3,200mbit") as lab:
        links = [(host, 0) for host in range(3)]
        drawn = [schedule.draw(step, lab.topology) for step in range(50)]
        seen = []
        with lab.schedule(schedule):
            deadline = time.monotonic() + 20
            while len({str(rates) for rates in seen}) < 3 and time.monotonic() < deadline:
                now = lab.rates()
                if (rates := {link: now[link] for link in links}) in drawn:  # not one that is being changed
                    seen.append(rates)
        assert seen[0] == drawn[0]
        assert len({str(rates) for rates in seen}) == 3
        assert {lab.rates()[link] for link in links} == {LinkRate(200 * MBIT, 200 * MBIT)}


def test_the_first_rates_of_a_schedule_hold_until_it_begins(networks):
    schedule, begun = RateSchedule.named("N3", period=0.1, seed=5), threading.Event()
    with Lab("star:2,200mbit") as lab:
        first = schedule.draw(0, lab.topology)

        def rates():
            now = lab.rates()
            return {link: now[link] for link in first}

        with lab.schedule(schedule, lambda over: begun.wait(20)):
            time.sleep(3 * schedule.period)
            assert rates() == first
            begun.set()
            deadline = time.monotonic() + 20
            while rates() == first:
                assert time.monotonic() < deadline


def test_the_control_network_reaches_the_launching_namespace(networks):
    with Lab("star:2,100mbit") as lab:
        if lab.access.holder is not None:
            pytest.skip("not in a user namespace")
        before = lab.counters()[0, 0]
        with socket.create_server((lab.layout.launcher_address, 0)) as server:
            server.settimeout(20)
            port = server.getsockname()[1]
            call = f"import socket; socket.create_connection(('{lab.layout.launcher_address}', {port})).sendall(b'hi')"
            lab.popen(0, [sys.executable, "-c", call])
            connection, (address, _) = server.accept()
            with connection:
                assert connection.recv(2) == b"hi"
        assert address == lab.address(0, "control")
        assert lab.counters()[0, 0] == before  # rail 0 saw nothing of it


@pytest.mark.slow
def test_a_failing_rank_is_named_with_what_it_wrote(networks):
    script = "import os, sys, time; sys.exit('out of cheese') if os.environ['RANK'] == '1' else time.sleep(60)"
    with Lab("star:2,100mbit") as lab:
        with pytest.raises(RankFailedError, match="rank 1 failed in its program: exit status 1: out of cheese"):
            lab.run([sys.executable, "-c", script], timeout=60)
        results = lab.run(["sh", "-c", "exit $RANK"], timeout=60, check=False)
    assert [result.returncode for result in results] == [0, 1]


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"topology": "ring:3"}, "unknown kind 'ring'"),
        ({"topology": "star:3"}, "star:3: a lab needs a rate"),
        ({"topology": "star:3", "rate": "500kbit"}, "must be from 1mbit to 10gbit"),
        ({"topology": "star:3", "rate": "11gbit"}, "must be from 1mbit to 10gbit"),
        ({"topology": "star:251,1mbit"}, "has 251 hosts; a lab can have 250"),
        ({"topology": "fattree:8,5gbit"}, "a link between switches would have the rate"),
        ({"topology": "star:3,1gbit", "mtu": 100}, "mtu 100: must be from 576 to 9000"),
        ({"topology": "star:3,1gbit", "name": "../x"}, "lab name '../x'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_made(arguments, complaint):
    with pytest.raises(ConfError) as error:
        Lab(**arguments)
    assert complaint in str(error.value)


@pytest.mark.parametrize("missing", ["ip", "tc"])
def test_missing_tools_are_named_with_their_package(monkeypatch, missing):
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == missing else which(name, path=path))
    with (
        pytest.raises(LabUnavailableError, match=f"no `{missing}` on this machine: install the package iproute2"),
        Lab("star:2,100mbit"),
    ):
        pass


def test_without_permission_the_error_says_what_to_allow(monkeypatch):
    monkeypatch.setattr(access, "tool", lambda name: shutil.which("false"))
    with (
        pytest.raises(LabUnavailableError, match="no permission .*user.max_user_namespaces.* loopback"),
        Lab("star:2,100mbit"),
    ):
        pass
    assert not [known for known in state.every() if known.owner == os.getpid()]


def test_a_lab_is_used_within_its_block_only():
    with pytest.raises(LabError, match="is not up"):
        Lab("star:2,100mbit").counters()


def test_a_place_survives_its_environment():
    with Lab.loopback("hosts:2x2,10mbit") as cluster:
        places = cluster.places()
    for place in places:
        assert Place.here(json.loads(json.dumps(place.environment()))) == place
