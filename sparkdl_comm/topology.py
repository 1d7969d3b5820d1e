"""Topology of a cluster: hosts, ranks, NICs, switches and link rates. Nothing here uses a network.

A topology is written as a short text, and :meth:`Topology.parse` reads it:

=========================  ==========================================================================================
``star:9``                 9 hosts with one NIC each on one non-blocking switch
``bcube:3,2``              BCube(n, k): n^k hosts with k NICs each, so 3 x 3 hosts with 2. A switch of level l joins hosts that
                           differ in digit l
``bcube:2x3``              grid of 2 x 3 hosts with 2 NICs each: 2 hosts per switch on level 0, 3 on level 1. With a comma
                           it would be 2^3 hosts with 3 NICs
``fattree:4``              three-tier Fat-Tree of k-port switches, k^3/4 hosts. ``fattree:4,oversub=2`` has half the
                           capacity above the edge switches
``hosts:4x2``              4 hosts with one NIC each on one switch, 2 ranks per host: fast inside, slow between hosts
=========================  ==========================================================================================

A rate, or one per rail, may follow: ``star:9,200mbit``, ``bcube:3,2,200mbit/100mbit``. Units are decimal, like those of
``tc``.

Rails are the NICs of a host, numbered from 0. In BCube a rail is a level. Hosts whose addresses differ only in digit l
are neighbors on rail l: there are only switches between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sparkdl_comm.errors import ConfError, nearest
from sparkdl_comm.units import format_rate, parse_rate

#: Limit of hosts, and of ranks. It is more than this package can drive, and keeps a typing error from filling the
#: memory.
MAX_HOSTS = 65536

KNOWN_FORMS = (
    "star:N, bcube:n,k, bcube:n0xn1x…, fattree:k[,oversub=R], hosts:MxS; each may end in a rate, such as ,200mbit"
)


@dataclass(frozen=True)
class Nic:
    """NIC ``rail`` of ``host``, plugged into ``switch`` (an index of :attr:`Topology.switches`)."""

    host: int
    rail: int
    switch: int


@dataclass(frozen=True)
class Host:
    """Machine with an index, its ranks, and one NIC per rail."""

    index: int
    ranks: tuple[int, ...]
    nics: tuple[Nic, ...]


@dataclass(frozen=True)
class Switch:
    """Switch of ``rail``. Trunks join the switches of the same rail and ``segment`` to one Ethernet."""

    index: int
    rail: int
    segment: int


@dataclass(frozen=True)
class Trunk:
    """Link between two switches, ``factor`` times as fast as the rail's NICs in each direction."""

    lower: int
    upper: int
    factor: float


@dataclass(frozen=True)
class Topology:
    """Topology of a cluster, see the module. Make one with :meth:`parse`.

    ``radices[l]``: number of hosts that rail l joins in one segment. Their product is the number of hosts. ``rates``:
    NIC rate of each rail in bit/s, empty if no rate was given.
    """

    text: str
    radices: tuple[int, ...]
    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...]
    trunks: tuple[Trunk, ...]
    rates: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Return the topology of a text such as ``bcube:3,2`` or ``star:9,200mbit``.

        :raises ConfError: an unknown name (the message lists the known ones), a bad number, or too many rates.
        """
        kind, _, rest = text.strip().partition(":")
        parts = [part.strip() for part in rest.split(",")]
        rates = parts.pop() if len(parts) > 1 and parts[-1].lower().endswith("bit") else None
        if kind not in _KINDS:
            raise ConfError(f"topology {text!r}: unknown kind {kind!r}; known: {KNOWN_FORMS}{nearest(kind, _KINDS)}")
        try:
            topology = _KINDS[kind](parts)
        except ValueError as error:
            raise ConfError(f"topology {text!r}: {error}; known: {KNOWN_FORMS}") from None
        return topology if rates is None else topology.with_rates(*rates.split("/"))

    def __str__(self) -> str:
        """Return a text for :meth:`parse`."""
        rates = self.rates[:1] if len(set(self.rates)) == 1 else self.rates
        return ",".join([self.text, "/".join(map(format_rate, rates))]) if rates else self.text

    def with_rates(self, *rates: str | int) -> Topology:
        """Return this topology with NICs of these rates: one for all rails, or one for each.

        :raises ConfError: another number of rates, or a bad rate.
        """
        if len(rates) not in (1, self.rails):
            raise ConfError(f"{self.text} has {self.rails} rails: give one rate for all or one each, not {len(rates)}")
        parsed = tuple(parse_rate(rate) for rate in rates)
        return replace(self, rates=parsed * self.rails if len(parsed) == 1 else parsed)

    @property
    def rails(self) -> int:
        """NICs per host."""
        return len(self.radices)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.hosts) * self.ranks_per_host

    @property
    def ranks_per_host(self) -> int:
        """Ranks per host."""
        return len(self.hosts[0].ranks)

    def host_of(self, rank: int) -> Host:
        """Return the host of ``rank``. Consecutive ranks fill one host after the other."""
        return self.hosts[rank // self.ranks_per_host]

    def digits(self, host: int) -> tuple[int, ...]:
        """Return the host's BCube address, digit 0 first. Digit l is less than ``radices[l]``."""
        found = []
        for radix in self.radices:
            host, digit = divmod(host, radix)
            found.append(digit)
        return tuple(found)

    def host_at(self, digits: tuple[int, ...]) -> Host:
        """Return the host with these digits: the inverse of :meth:`digits`."""
        index = 0
        for digit, radix in zip(reversed(digits), reversed(self.radices), strict=True):
            index = index * radix + digit
        return self.hosts[index]

    def segment_of(self, host: int, rail: int) -> int:
        """Return the segment of the host's NIC, numbered within the rail."""
        return self.switches[self.hosts[host].nics[rail].switch].segment

    def neighbor_hosts(self, host: int, rail: int) -> tuple[int, ...]:
        """Return the other hosts on the segment of this host's NIC ``rail``, in order."""
        digits = self.digits(host)
        others = (d for d in range(self.radices[rail]) if d != digits[rail])
        return tuple(self.host_at((*digits[:rail], d, *digits[rail + 1 :])).index for d in others)

    def neighbors(self, rank: int, rail: int) -> tuple[int, ...]:
        """Return the ranks of other hosts that ``rank`` reaches over ``rail`` without a host in between, in order."""
        hosts = self.neighbor_hosts(self.host_of(rank).index, rail)
        return tuple(other for host in hosts for other in self.hosts[host].ranks)

    def local_ranks(self, rank: int) -> tuple[int, ...]:
        """Return the other ranks of the same host."""
        return tuple(other for other in self.host_of(rank).ranks if other != rank)

    def cycle(self) -> list[int]:
        """Return all ranks in an order in which consecutive ranks, and the last and the first, are neighbors or on the
        same host.
        """
        order = [0]
        stride = 1
        for radix in self.radices:
            order = _weave([[host + digit * stride for host in order] for digit in range(radix)])
            stride *= radix
        return [rank for host in order for rank in self.hosts[host].ranks]

    def next_hop(self, host: int, rail: int, segment: int) -> Nic | None:
        """Return the neighbor's NIC to which a packet for ``segment`` of ``rail`` goes next. None: this host is on the
        segment.

        Corrects one differing digit per hop, lowest level first, as BCube's servers do.
        """
        digits = self.digits(host)
        target_digits = _shared_digits(rail, self.radices, segment)
        for level, digit in target_digits.items():
            if digits[level] != digit:
                return self.host_at((*digits[:level], digit, *digits[level + 1 :])).nics[level]
        return None


def _weave(rows: list[list[int]]) -> list[int]:
    """Return one cycle through all rows. Each row is a cycle, and hosts at the same index of two rows are neighbors.

    The first column is kept for the return to the first row, unless the number of rows is even. Then the path through the
    rows ends in that column anyway.
    """
    if len(rows[0]) == 1 or len(rows) % 2 == 0:
        return [host for index, row in enumerate(rows) for host in (reversed(row) if index % 2 else row)]
    path = [host for index, row in enumerate(rows) for host in (reversed(row[1:]) if index % 2 else row[1:])]
    return [rows[0][0], *path, *(row[0] for row in reversed(rows[1:]))]


def _shared_digits(rail: int, radices: tuple[int, ...], segment: int) -> dict[int, int]:
    """Return the digits that all hosts of the segment have in common, by level: all levels but ``rail``."""
    found = {}
    for level, radix in enumerate(radices):
        if level != rail:
            segment, found[level] = divmod(segment, radix)
    return found


def _segment_of(rail: int, radices: tuple[int, ...], digits: tuple[int, ...]) -> int:
    """Return the segment of a host with these digits: the inverse of :func:`_shared_digits`."""
    segment = 0
    for level in reversed(range(len(radices))):
        if level != rail:
            segment = segment * radices[level] + digits[level]
    return segment


def _number(text: str, minimum: int, what: str) -> int:
    if not text.isdecimal() or not minimum <= int(text) <= MAX_HOSTS:
        raise ValueError(f"{what} must be a number from {minimum} to {MAX_HOSTS}, not {text!r}")
    return int(text)


def _expect_count(parts: list[str], count: int, what: str) -> list[str]:
    if len(parts) != count:
        raise ValueError(f"needs {what}, not {len(parts)} values")
    return parts


def _make_cube(text: str, radices: tuple[int, ...], ranks_per_host: int = 1) -> Topology:
    """Return hosts at all addresses of these radices, with one switch per segment of each rail."""
    if math.prod(radices) * ranks_per_host > MAX_HOSTS:
        raise ValueError(f"has {math.prod(radices) * ranks_per_host} ranks, more than {MAX_HOSTS}")
    count = math.prod(radices)
    shape = Topology(text, radices, (), (), ())
    per_rail = [count // radix for radix in radices]
    first = [sum(per_rail[:rail]) for rail in range(len(radices))]
    switches = tuple(
        Switch(first[rail] + segment, rail, segment)
        for rail in range(len(radices))
        for segment in range(per_rail[rail])
    )
    hosts = []
    for host in range(count):
        digits = shape.digits(host)
        nics = tuple(Nic(host, rail, first[rail] + _segment_of(rail, radices, digits)) for rail in range(len(radices)))
        hosts.append(Host(host, tuple(range(host * ranks_per_host, (host + 1) * ranks_per_host)), nics))
    return replace(shape, hosts=tuple(hosts), switches=switches)


def _star(parts: list[str]) -> Topology:
    count = _number(_expect_count(parts, 1, "the number of hosts")[0], 1, "the number of hosts")
    return _make_cube(f"star:{count}", (count,))


def _hosts(parts: list[str]) -> Topology:
    pair = _expect_count(_expect_count(parts, 1, "MxS")[0].split("x"), 2, "MxS, hosts and ranks on each")
    count, ranks_per_host = (_number(part, 1, "hosts and ranks per host") for part in pair)
    return _make_cube(f"hosts:{count}x{ranks_per_host}", (count,), ranks_per_host)


def _bcube(parts: list[str]) -> Topology:
    if len(parts) == 1 and "x" in parts[0]:
        radices = tuple(_number(part, 2, "a radix") for part in parts[0].split("x"))
        return _make_cube(f"bcube:{parts[0]}", radices)
    n, k = _expect_count(parts, 2, "n,k or radices such as 2x3")
    ports, levels = _number(n, 2, "n, the ports of a switch,"), _number(k, 1, "k, the number of levels,")
    if levels > math.log2(MAX_HOSTS):
        raise ValueError(f"has more than {MAX_HOSTS} hosts")
    return _make_cube(f"bcube:{ports},{levels}", (ports,) * levels)


def _fattree(parts: list[str]) -> Topology:
    """Return a Fat-Tree. Parallel paths between two tiers are one trunk of their total rate, as under ideal multi-path
    routing.
    """
    options = dict(part.partition("=")[::2] for part in parts[1:])
    oversub = float(options.pop("oversub", "1"))
    if options:
        raise ValueError(f"unknown option {', '.join(options)}")
    if not 1 <= oversub <= 1000:
        raise ValueError(f"oversub must be from 1 to 1000, not {oversub:g}")
    k = _number(parts[0], 2, "k, the ports of a switch,")
    if k % 2 or k**3 // 4 > MAX_HOSTS:
        raise ValueError(f"k must be even, and k^3/4 hosts at most {MAX_HOSTS}; not {k}")
    half = k // 2
    edges, count = k * half, k * half * half
    core = edges + k
    hosts = tuple(Host(h, (h,), (Nic(h, 0, h // half),)) for h in range(count))
    switches = tuple(Switch(index, 0, 0) for index in range(core + 1))
    trunks = [Trunk(edge, edges + edge // half, half / oversub) for edge in range(edges)]
    trunks += [Trunk(edges + pod, core, half * half / oversub) for pod in range(k)]
    text = f"fattree:{k}" + (f",oversub={oversub!r}" if oversub != 1 else "")
    return Topology(text, (count,), hosts, switches, tuple(trunks))


_KINDS = {"star": _star, "bcube": _bcube, "fattree": _fattree, "hosts": _hosts}
