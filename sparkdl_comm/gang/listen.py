"""Listening sockets: choice of the NIC and the port, and admission of peers that prove the gang's secret.

Spark knows one address per host. A rank has one per NIC, and the user may choose the NIC for control traffic. Nothing
here listens on all interfaces, and a port is announced only once it is bound.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from sparkdl_comm.errors import ConfError, SparkdlCommError
from sparkdl_comm.gang import frames, handshake
from sparkdl_comm.gang.frames import Clock
from sparkdl_comm.gang.handshake import MAX_HELLO, Address

NIC_KEY = "spark.sparkdl.comm.nic"
HOST_KEY = "spark.sparkdl.comm.driver.host"
BIND_KEY = "spark.driver.bindAddress"
RAILS_KEY = "spark.sparkdl.comm.rails"
PORTS_KEY = "spark.sparkdl.comm.ports"
#: Maximum number of connections in the listening socket's queue.
BACKLOG = 1024


def all_nics() -> dict[str, list[str]]:
    """Return the addresses of the NICs that are up, by NIC name, IPv4 first. Link-local IPv6 addresses are left out:
    they need a scope.
    """
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


def _list_nics() -> str:
    return "there are: " + ", ".join(f"{name} ({' '.join(found)})" for name, found in all_nics().items())


def nics_to_advertise(host_ip: str) -> dict[str, str]:
    """Return one address per NIC name, IPv4 if there is one. Loopback is included only if ``host_ip`` is loopback."""
    loopback = ipaddress.ip_address(host_ip).is_loopback
    first = {name: found[0] for name, found in all_nics().items()}
    return {name: ip for name, ip in first.items() if loopback or not ipaddress.ip_address(ip).is_loopback}


def network_of(ip: str) -> str:
    """Return the network of a NIC's address, such as 10.0.1.0/24; the address alone if the system does not know it."""
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
    """Return the numeric address to listen on: of ``nic`` (interface name, IP or CIDR) if given, else of ``host``.

    :param key: conf key by which the user sets the address, for messages.
    :raises ConfError: there is no such address. The message names ``key`` and the existing NICs.
    """
    host = _strip_brackets(host)
    nics = all_nics()
    if nic is not None:
        if nic in nics:
            return nics[nic][0]
        try:
            network = ipaddress.ip_network(nic, strict=False)
        except ValueError:
            network = None
        # All of 127.0.0.0/8 belongs to the loopback interface, which lists only one of these addresses.
        if network is not None and network.num_addresses == 1 and network.is_loopback:
            return str(network.network_address)
        for address in (address for found in nics.values() for address in found):
            if network is not None and ipaddress.ip_address(address) in network:
                return address
        raise ConfError(f"{key}={nic}: no such NIC, address or network on {host}; {_list_nics()}")
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise ConfError(f"{host!r} does not resolve ({exc}); set {key}; {_list_nics()}") from exc
    infos.sort(key=lambda info: info[0] != socket.AF_INET)
    address = str(infos[0][4][0])
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        raise ConfError(f"{host!r} is {address}, all interfaces; name one with {key}; {_list_nics()}")
    if _is_name(host) and ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        # Debian maps a host's own name to 127.0.1.1, which other hosts cannot reach.
        return _first_nic() or address
    return address


def driver_addresses(host: str, bind: str | None) -> tuple[str, str]:
    """Return the numeric address for the driver to listen on, and the address or name for executors to connect to.

    :param host: address by which executors reach the driver. Behind NAT it is not an address of this host, and perhaps
        a name that only executors can resolve.
    :param bind: address that Spark's own driver binds (``spark.driver.bindAddress``). All interfaces count as None,
        since nothing here listens on them.
    :raises ConfError: ``host`` does not resolve, and ``bind`` does not say where to listen; or there is no NIC to
        listen on.
    """
    host = _strip_brackets(host)
    chosen = None if bind is None or _is_unspecified(_strip_brackets(bind)) else choose_address(bind, None, BIND_KEY)
    try:
        advertised = choose_address(host, None, HOST_KEY)
    except ConfError:
        if chosen is None or not _is_name(host):
            raise
        return chosen, host
    if chosen is None:
        chosen = advertised if _is_local(advertised) else _first_nic()
    if chosen is None:
        raise ConfError(
            f"{host} is not an address of this host, which has no other address to listen on. Set {BIND_KEY}."
        )
    return chosen, advertised


def _strip_brackets(host: str) -> str:
    """Return ``host`` without the brackets that Spark writes around IPv6 addresses."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _is_name(host: str) -> bool:
    """Return whether ``host`` is a name, but not ``localhost``: a user who sets ``localhost`` wants the loopback."""
    return _parse_ip(host) is None and not host.startswith("localhost")


def _is_unspecified(host: str) -> bool:
    address = _parse_ip(host)
    return address is not None and address.is_unspecified


def _parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_local(ip: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


def _first_nic() -> str | None:
    """Return the first address that other hosts could reach."""
    found = (address for addresses in all_nics().values() for address in addresses)
    return next((address for address in found if not ipaddress.ip_address(address).is_loopback), None)


def bind(ip: str, ports: range | None) -> socket.socket:
    """Return a listening socket on ``ip``: on the first free port of ``ports``, or on one that the system chooses.

    :raises ConfError: all ports are taken, or ``ip`` is not of this host. The message names the key to change.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    last: OSError | None = None
    for port in (0,) if ports is None else ports:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            # A restarted gang can then bind a port on which its predecessor's connections are in TIME_WAIT.
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
        raise ConfError(f"{ip} is not an address of this host ({exc}). Set {NIC_KEY}; {_list_nics()}") from exc
    finally:
        probe.close()
    span = "any port" if ports is None else f"the {len(ports)} ports of {PORTS_KEY} ({ports.start} to {ports.stop - 1})"
    raise ConfError(f"cannot listen on {ip}: {span}: {last or 'none given'}; give more with {PORTS_KEY}") from last


#: Seconds that a connection has for handshake and hello.
HANDSHAKE_SECONDS = 10.0
#: Maximum number of connections in authentication at once, in addition to the expected peers. More are refused, so that
#: strangers can start only so many threads.
MAX_HANDSHAKES = 256

_log = logging.getLogger(__name__)

OnPeer = Callable[[socket.socket, dict[str, Any]], None]


class Acceptor:
    """Listening socket that passes on only authenticated peers.

    A peer proves that it knows the secret, then sends a hello: one JSON frame of at most 4 KiB. Each connection is
    authenticated in its own thread, so a stranger delays nobody.
    """

    def __init__(
        self,
        ip: str,
        ports: range | None,
        secret: bytes,
        on_peer: OnPeer,
        clock: Clock = time.monotonic,
        *,
        peers: int = 0,
    ) -> None:
        """Bind the socket.

        :param on_peer: ``on_peer(sock, hello)`` runs in the connection's thread and owns ``sock`` from then on. If it
            raises a SparkdlCommError or OSError, ``sock`` is closed.
        :param peers: number of expected peers, which may connect all at once.
        :raises ConfError: see :func:`~sparkdl_comm.gang.listen.bind`.
        """
        self._secret = secret
        self._on_peer = on_peer
        self._clock = clock
        self._free_slots = threading.Semaphore(MAX_HANDSHAKES + peers)
        self._threads: list[threading.Thread] = []
        self.sock = bind(ip, ports)
        name = self.sock.getsockname()
        self.address: Address = (name[0], name[1])

    def accept(self) -> None:
        """Accept one connection without waiting for its data. Call it when the socket is readable."""
        try:
            sock, _ = self.sock.accept()
        except BlockingIOError:
            return  # the peer has disconnected already
        except OSError as exc:
            # Out of file descriptors: the connection stays in the queue, so without a pause this would be a busy loop.
            _log.warning("cannot accept on %s port %d: %s", *self.address, exc)
            time.sleep(0.05)
            return
        if not self._free_slots.acquire(blocking=False):
            sock.close()
            return
        thread = threading.Thread(target=self._authenticate, args=(sock,), name="sparkdl-handshake", daemon=True)
        self._threads = [other for other in self._threads if other.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _authenticate(self, sock: socket.socket) -> None:
        deadline = self._clock() + HANDSHAKE_SECONDS
        try:
            try:
                handshake.accept(sock, self._secret, deadline, self._clock)
                hello = frames.recv_frame(sock, MAX_HELLO, deadline, self._clock)
            finally:
                self._free_slots.release()
            self._on_peer(sock, hello)
        except (SparkdlCommError, OSError) as exc:
            _log.info("refused a connection on %s port %d: %s", *self.address, exc)
            sock.close()
        except Exception:  # noqa: BLE001 - a bug must not leave the peer hanging
            _log.exception("unexpected error on a connection on %s port %d", *self.address)
            sock.close()

    def close(self) -> None:
        self.sock.close()

    def join(self, seconds: float) -> None:
        """Wait until the threads of all connections have ended, at most ``seconds``. Call it after :meth:`close`."""
        deadline = self._clock() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - self._clock()))
