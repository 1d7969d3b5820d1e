from __future__ import annotations

import socket

import pytest

from sparkdl_comm.errors import ConfError
from sparkdl_comm.gang import listen
from sparkdl_comm.gang.listen import bind, choose_address, driver_addresses, nics_to_advertise

NICS = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.5", "fd00::5"], "eth1": ["10.1.0.5"], "six": ["fd01::5"]}


@pytest.fixture
def nics(monkeypatch):
    monkeypatch.setattr(listen, "all_nics", lambda: NICS)


@pytest.mark.parametrize(
    ("nic", "expected"),
    [
        ("eth1", "10.1.0.5"),
        ("six", "fd01::5"),
        ("10.0.0.5", "10.0.0.5"),
        ("fd00::5", "fd00::5"),
        ("10.1.0.0/16", "10.1.0.5"),
        ("10.0.0.0/8", "10.0.0.5"),
        ("fd01::/64", "fd01::5"),
        (None, "127.0.0.1"),
    ],
)
def test_choice_of_nic(nics, nic, expected):
    assert choose_address("127.0.0.1", nic) == expected


@pytest.mark.parametrize("nic", ["eth7", "10.9.9.9", "192.168.0.0/16", "0.0.0.0", "", "10.0.0.0/99"])
def test_no_such_nic_lists_those_there_are(nics, nic):
    with pytest.raises(ConfError, match=r"spark\.sparkdl\.comm\.nic") as caught:
        choose_address("h", nic)
    assert "eth1 (10.1.0.5)" in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "no-such-host.invalid"])
def test_host_that_is_no_place_to_listen(nics, host):
    with pytest.raises(ConfError, match=r"spark\.sparkdl\.comm\.nic"):
        choose_address(host, None)


def resolves(monkeypatch, **names):
    """What the system's resolver knows, beside numbers."""

    def getaddrinfo(host, port, *more, **options):
        if host in names:
            host = names[host]
        elif host[0].isalpha() and ":" not in host:
            raise socket.gaierror("no such name")
        return real(host, port, *more, **options)

    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_an_address_in_brackets_as_spark_writes_it(nics):
    assert choose_address("[fd00::5]", None) == "fd00::5"
    assert choose_address("[::1]", None) == "::1"


def test_a_host_whose_own_name_is_the_loopback(nics, monkeypatch):
    """As Debian sets it up: no other host could use 127.0.1.1."""
    resolves(monkeypatch, box="127.0.1.1", localhost="127.0.0.1")
    assert choose_address("box", None) == "10.0.0.5"
    assert choose_address("localhost", None) == "127.0.0.1"
    assert choose_address("127.0.1.1", None) == "127.0.1.1", "asked for by number"
    monkeypatch.setattr(listen, "all_nics", lambda: {"lo": ["127.0.0.1"]})
    assert choose_address("box", None) == "127.0.1.1", "there is no other"


@pytest.mark.parametrize(
    ("host", "bound", "expected"),
    [
        ("10.0.0.5", None, ("10.0.0.5", "10.0.0.5")),
        ("box", None, ("10.0.0.5", "10.0.0.5")),
        ("10.0.0.5", "10.1.0.5", ("10.1.0.5", "10.0.0.5")),
        ("[fd00::5]", "[fd01::5]", ("fd01::5", "fd00::5")),
        # behind NAT, in a container
        ("198.51.100.7", "10.1.0.5", ("10.1.0.5", "198.51.100.7")),
        ("198.51.100.7", "0.0.0.0", ("10.0.0.5", "198.51.100.7")),
        ("198.51.100.7", None, ("10.0.0.5", "198.51.100.7")),
        ("only-executors-know-it", "10.0.0.5", ("10.0.0.5", "only-executors-know-it")),
    ],
)
def test_where_the_driver_listens_and_what_executors_are_told(nics, monkeypatch, host, bound, expected):
    resolves(monkeypatch, box="127.0.1.1")
    monkeypatch.setattr(listen, "_is_local", lambda ip: any(ip in found for found in NICS.values()))
    assert driver_addresses(host, bound) == expected


@pytest.mark.parametrize("host", ["0.0.0.0", "no-such-host.invalid"])
def test_the_drivers_address_is_set_by_a_key_of_the_driver(nics, host):
    with pytest.raises(ConfError, match=r"spark\.sparkdl\.comm\.driver\.host"):
        driver_addresses(host, None)


def test_loopback_is_advertised_only_on_loopback(nics):
    assert nics_to_advertise("10.0.0.5") == {"eth0": "10.0.0.5", "eth1": "10.1.0.5", "six": "fd01::5"}
    assert nics_to_advertise("127.0.0.1")["lo"] == "127.0.0.1"


def test_real_nics_have_loopback_and_no_scoped_address():
    nics = listen.all_nics()
    assert "127.0.0.1" in [address for found in nics.values() for address in found]
    assert not [address for found in nics.values() for address in found if "%" in address]


def test_bind_takes_the_next_port_when_one_is_taken():
    with bind("127.0.0.1", None) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", range(port, port + 50)) as second:
            assert second.getsockname()[0] == "127.0.0.1"
            assert port < second.getsockname()[1] < port + 50


def test_all_ports_taken():
    with bind("127.0.0.1", None) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfError, match=rf"spark\.sparkdl\.comm\.ports \({port} to {port}\)"):
            bind("127.0.0.1", range(port, port + 1))


@pytest.mark.parametrize("ports", [range(0), range(70_000, 70_001)])
def test_ports_that_are_none(ports):
    with pytest.raises(ConfError, match=r"spark\.sparkdl\.comm\.ports"):
        bind("127.0.0.1", ports)


def test_address_of_another_host():
    with pytest.raises(ConfError, match=r"spark\.sparkdl\.comm\.nic"):
        bind("198.51.100.1", None)  # a documentation address, which nobody has


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_ipv6():
    try:
        sock = bind("::1", None)
    except ConfError:
        pytest.skip("no IPv6 loopback")
    with sock:
        assert sock.getsockname()[0] == "::1"
