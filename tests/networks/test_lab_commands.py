"""The program `sparkdl-lab`, its labs in the background, and its check of the links."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab import Lab, LinkRate, state
from lab.check import LinkCheck, across, check, rings
from lab.commands import main

from sparkdl_comm.errors import InputError

PROGRAM = Path(__file__).parents[2] / "python" / "sparkdl-lab"


@pytest.fixture
def name():
    return f"test-{os.getpid()}-{time.monotonic_ns() % 10**6}"


def call(*arguments):
    """Runs `python/sparkdl-lab`, in a process of its own."""
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_a_lab_stays_up_in_the_background_until_it_is_taken_down(networks, name):
    try:
        made = call("up", name, "--topology", "star:2", "--rate", "200mbit")
        assert (made.returncode, made.stderr) == (0, "")
        listed = {lab["name"]: lab for lab in json.loads(call("status", "--json").stdout)}
        assert listed[name]["state"] == "kept"
        assert [(link["host"], link["up"]) for link in listed[name]["links"]] == [
            (0, 200_000_000),
            (1, 200_000_000),
            ("head", 200_000_000),
        ]
        assert f"{name}: star:2,200mbit" in call("status").stdout

        inside = call("exec", name, 1, "--", "sh", "-c", "ip -brief addr show rail0; exit 7")
        assert inside.returncode == 7
        assert "10.1.0.2/24" in inside.stdout
        assert call("rate", name, 1, "--down", "50mbit").returncode == 0
        assert Lab.attach(name).rates()[1, 0] == LinkRate(200_000_000, 50_000_000)
        again = call("up", name, "--topology", "star:2", "--rate", "200mbit")
        assert again.returncode == 1
        assert "already" in again.stderr
    finally:
        removed = call("down", name)
    assert (removed.returncode, removed.stdout) == (0, f"removed lab {name}\n")
    assert name not in [known.name for known in state.every()]
    assert call("down", name).returncode == 1


def test_down_without_a_name_removes_what_was_left_and_no_lab_in_use(networks, name):
    program = (
        "import sys, time; from lab import Lab\n"
        "with Lab('star:2,100mbit', name=sys.argv[1]): print('up', flush=True); time.sleep(60)"
    )
    with Lab("star:2,100mbit") as used:
        process = subprocess.Popen([sys.executable, "-c", program, name], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "up\n"
        process.kill()
        process.communicate(timeout=10)
        done = call("down")
        assert f"removed lab {name}\n" in done.stdout
        assert used.name not in done.stdout
        assert call("down", used.name).returncode == 1
        assert len(used.rates()) == 3


def test_run_shows_what_each_rank_wrote_and_fails_with_them(networks):
    done = call("run", "--topology", "hosts:1x2,100mbit", "--", "sh", "-c", "echo of $WORLD_SIZE; exit $RANK")
    assert done.stdout == "[0] of 2\n[1] of 2\n"
    assert (done.returncode, done.stderr) == (1, "sparkdl-lab: ranks 1 failed\n")
    assert call("run", "--topology", "star:2", "--loopback", "--", "true").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["up", "x", "--topology", "ring:3"], "ConfError: topology 'ring:3': unknown kind 'ring'; known: star:N"),
        (["check", "--topology", "star:2"], "needs a rate"),
        (["check"], "give the name of a running lab, or --topology"),
        (["rate", "x", "0"], "give --up, --down or both"),
        (["exec", "no-such-lab", "0", "--", "true"], "no lab 'no-such-lab'"),
        (["down", "x", "--all"], "give names or --all"),
        (["run", "--topology", "star:2", "--loopback", "--schedule", "N1", "--", "true"], "--loopback has no links"),
        (["run", "--topology", "star:2,5mbit", "--schedule", "N1", "--", "true"], "share 0.1 of the rate"),
    ],
)
def test_errors_are_one_line(arguments, complaint, capsys):
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


# --- check --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_check_measures_every_nic_both_ways(networks):
    with Lab("bcube:2,2,100mbit") as lab:
        found = check(lab, seconds=0.3)
        counters = lab.counters()
    assert {link.link for link in found} == {
        f"host {h} rail {r} {way}" for h in range(4) for r in range(2) for way in ("up", "down")
    }
    assert {link.nominal for link in found} == {100e6}
    for link in found:
        host, rail = map(int, re.findall(r"\d+", link.link))
        counted = counters[host, rail].sent if link.link.endswith("up") else counters[host, rail].received
        assert 0 < link.measured * 0.3 / 8 < 1.1 * counted


@pytest.mark.slow
def test_check_tells_links_that_are_slower_than_they_should_be(networks, monkeypatch):
    with Lab("star:2,100mbit") as lab:
        monkeypatch.setattr(lab, "rates", lambda: {(host, 0): LinkRate(2 * 10**8, 2 * 10**8) for host in range(2)})
        assert not any(link.within() for link in check(lab, seconds=0.3))


def test_a_link_may_be_off_by_eight_percent_either_way():
    assert [LinkCheck("", measured, 100).within() for measured in (91, 93, 107, 109)] == [False, True, True, False]


def test_a_single_host_has_nothing_to_check(networks):
    with Lab("hosts:1x2,100mbit") as lab, pytest.raises(InputError, match="single host"):
        check(lab)


@pytest.mark.parametrize("oversub", [1.5, 4])
def test_trunks_that_would_have_to_drop_packets_are_not_measured(oversub):
    with pytest.raises(InputError, match=f"{2 / oversub:g} times as fast as a NIC; .* oversub must divide k/2"):
        check(Lab(f"fattree:4,oversub={oversub:g},100mbit"))


@pytest.mark.parametrize("topology", ["star:5", "bcube:3,2", "bcube:2x3", "fattree:4"])
def test_streams_of_a_round_share_no_link_of_a_host(topology):
    lab = Lab(topology, "10mbit")
    for streams in (rings(lab), across(lab)):
        assert len({(sender, rail) for sender, _, rail in streams}) == len(streams)
        assert len({(receiver, rail) for _, receiver, rail in streams}) == len(streams)
    assert len(rings(lab)) == len(lab.topology.hosts) * lab.topology.rails


@pytest.mark.parametrize("topology", ["fattree:2", "fattree:4", "fattree:4,oversub=2", "fattree:6,oversub=3"])
def test_streams_across_fill_each_trunk_and_no_more(topology):
    shape, streams = Lab(topology, "10mbit").topology, across(Lab(topology, "10mbit"))
    parents = {trunk.lower: trunk.upper for trunk in shape.trunks}
    edges = [tuple(shape.hosts[host].nics[0].switch for host in stream[:2]) for stream in streams]
    for trunk in shape.trunks:
        for end in (0, 1):
            assert sum(trunk.lower in (pair[end], parents[pair[end]]) for pair in edges) == trunk.factor
    assert all(parents[sender] != parents[receiver] for sender, receiver in edges)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [100, 200, 500])
@pytest.mark.parametrize("topology", ["star:9", "bcube:3,2", "hosts:4x2", "fattree:4,oversub=2"])
def test_the_whole_sweep_can_be_measured(networks, topology, rate):
    # How fast the links were is for `make lab-check` on a quiet machine to judge; here, that all could be busy at once.
    with Lab(topology, f"{rate}mbit") as lab:
        found = check(lab, seconds=1.0)
    assert len(found) == 2 * len(rings(lab)) + 2 * len(lab.topology.trunks)
    assert all(link.measured > 0 for link in found)
