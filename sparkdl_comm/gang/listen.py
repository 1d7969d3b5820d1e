"""Listening sockets: on which NIC, and on which port. Who is let in is the acceptor's business (``acceptor.py``).

Spark knows one address per host; a rank has one per NIC, and the user may say which one the control traffic
takes. Nothing here listens on all interfaces, and a port is announced only once it is bound.
"""

from __future__ import annotations

import ipaddress
import socket

import psutil

from sparkdl_comm.errors import ConfError

NIC_KEY = "spark.sparkdl.comm.nic"
HOST_KEY = "spark.sparkdl.comm.driver.host"
BIND_KEY = "spark.driver.bindAddress"
RAILS_KEY = "spark.sparkdl.comm.rails"
PORTS_KEY = "spark.sparkdl.comm.ports"
#: Connections that wait to be accepted.
BACKLOG = 1024


def all_nics() -> dict[str, list[str]]:
    """NIC name -> its addresses, IPv4 first, of the NICs that are up. Link-local IPv6 ones need a scope: left
    out."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    nics: dict[str, list[str]] = {}
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        if name not in up:
            continue
        for family in (socket.AF_INET, socket.AF_INET6):
            nics.setdefault(name, []).extend(
                a.address for a in addresses if a.family == family and "%" not in a.address
            )
    return {name: found for name, found in nics.items() if found}


def nics_to_advertise(host_ip: str) -> dict[str, str]:
    """NIC name -> one address each (IPv4 where there is one). Loopback only if ``host_ip`` is loopback: no
    other host could use it."""
    loopback = ipaddress.ip_address(host_ip).is_loopback
    first = {name: found[0] for name, found in all_nics().items()}
    return {name: ip for name, ip in first.items() if loopback or not ipaddress.ip_address(ip).is_loopback}


def network_of(ip: str) -> str:
    """The network that the address of a NIC is in, such as 10.0.1.0/24; the address alone if the system does not say."""
    address = ipaddress.ip_address(ip)
    for found in psutil.net_if_addrs().values():
        for nic in found:
            if nic.netmask and nic.family in (socket.AF_INET, socket.AF_INET6) and "%" not in nic.address:
                length = int(ipaddress.ip_address(nic.netmask)).bit_count()
                network = ipaddress.ip_network(f"{nic.address}/{length}", strict=False)
                if address in network:
                    return str(network)
    return str(ipaddress.ip_network(ip))


def choose_address(host: str, nic: str | None, key: str = NIC_KEY) -> str:
    """The numeric address to listen on: of ``nic`` (interface name, IP or CIDR) if given, else what ``host``
    resolves to.

    :raises ConfError: there is none; names ``key``, by which the user sets it, and the NICs there are.
    """
    host = _bare(host)
    nics = all_nics()
    there = ", ".join(f"{name} ({' '.join(found)})" for name, found in nics.items())
    if nic is not None:
        if nic in nics:
            return nics[nic][0]
        try:
            network = ipaddress.ip_network(nic, strict=False)
        except ValueError:
            network = None
        # All of 127.0.0.0/8 is the loopback interface, which has but one of them.
        if network is not None and network.num_addresses == 1 and network.is_loopback:
            return str(network.network_address)
        for address in (address for found in nics.values() for address in found):
            if network is not None and ipaddress.ip_address(address) in network:
                return address
        raise ConfError(f"{key}={nic}: no such NIC, address or network on {host}; there are: {there}")
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise ConfError(f"{host!r} does not resolve ({exc}); set {key}; this host's NICs are: {there}") from exc
    infos.sort(key=lambda info: info[0] != socket.AF_INET)
    address = str(infos[0][4][0])
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        raise ConfError(f"{host!r} is {address}, all interfaces; name one with {key}; there are: {there}")
    if _is_name(host) and ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        # Debian gives a host's own name the address 127.0.1.1, by which no other host can reach it.
        return _first_nic() or address
    return address


def driver_addresses(host: str, bind: str | None) -> tuple[str, str]:
    """The numeric address for the driver to listen on, and the address or name that executors are told.

    :param host: by which executors reach the driver; behind NAT, or a name that only they can resolve, no address of this
        host. ``bind``: what Spark's own driver binds (``spark.driver.bindAddress``); all interfaces count as nothing, since
        nothing here listens on them.
    :raises ConfError: ``host`` does not resolve, and ``bind`` does not say where to listen; or there is no NIC to listen on.
    """
    host = _bare(host)
    chosen = None if bind is None or _is_unspecified(_bare(bind)) else choose_address(bind, None, BIND_KEY)
    try:
        told = choose_address(host, None, HOST_KEY)
    except ConfError:
        if chosen is None or not _is_name(host):
            raise
        return chosen, host
    if chosen is None:
        chosen = told if _is_ours(told) else _first_nic()
    if chosen is None:
        raise ConfError(f"{host} is no address of this host, which has no other to listen on; set {BIND_KEY}")
    return chosen, told


def _bare(host: str) -> str:
    """Spark writes IPv6 addresses in brackets."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _is_name(host: str) -> bool:
    """Of a host; ``localhost`` is meant to be the loopback."""
    return _literal(host) is None and not host.startswith("localhost")


def _is_unspecified(host: str) -> bool:
    literal = _literal(host)
    return literal is not None and literal.is_unspecified


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_ours(ip: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


def _first_nic() -> str | None:
    """The first address that other hosts could use."""
    found = (address for addresses in all_nics().values() for address in addresses)
    return next((address for address in found if not ipaddress.ip_address(address).is_loopback), None)


def bind(ip: str, ports: range | None) -> socket.socket:
    """A listening socket on ``ip``: the first free port of ``ports``, or one that the system chooses.

    :raises ConfError: all ports are taken, or ``ip`` is not ours; names the key to change.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    last: OSError | None = None
    for port in (0,) if ports is None else ports:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            # So that a restarted gang gets the port on which its predecessor's connections are in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((ip, port))
            sock.listen(BACKLOG)
            sock.setblocking(False)
            return sock
        except (OSError, OverflowError) as exc:
            sock.close()
            last = exc if isinstance(exc, OSError) else OSError(str(exc))
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        probe.bind((ip, 0))
    except OSError as exc:
        raise ConfError(f"{ip} is no address of this host ({exc}); set {NIC_KEY}; there are: {all_nics()}") from exc
    finally:
        probe.close()
    span = "any port" if ports is None else f"the {len(ports)} ports of {PORTS_KEY} ({ports.start} to {ports.stop - 1})"
    raise ConfError(f"cannot listen on {ip}: {span}: {last or 'none given'}; give more with {PORTS_KEY}") from last
