"""Measurement of a lab's links, while all of them are busy both ways at once.

On every rail the hosts of a segment form a ring, and each sends to the next one over TCP, as fast as it can. So every NIC
sends one stream and receives one. Trunks between switches need a second round. There hosts send to hosts half the cluster
away, so all streams cross the top, as many as fill the trunks. A trunk must have room for a whole number of streams.
Otherwise it would drop packets, and the result would be TCP's recovery: 0.7 to 0.98 of the rate.

The measured rate has the payload of the receiving program and the Ethernet, IP and TCP headers of full packets of the
MTU, in a window after slow start. Acknowledgements are not added. They share the link with the opposite stream, and cost
it 1 to 2 %. A stream cannot show which end of a link is slow. Its rate counts for the sender's ``up`` and for the
receiver's ``down``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab import traffic
from lab.layout import HostId
from lab.network import Lab
from sparkdl_comm.errors import ConfError, DeadlineError, InputError

TOLERANCE = 0.08
_PORT = 28000
#: Seconds that a stream must run before the window begins, to be past slow start.
_WARM_UP = 1.0
#: Seconds per host for the start of all programs, at first, and the number of attempts. Each attempt doubles the seconds.
_START_UP, _ATTEMPTS = 0.1, 6
#: Bytes of each full packet that are not payload: IP, TCP and TCP's time stamps; and the Ethernet header around them.
_INNER_HEADERS, _ETHERNET = 52, 14


@dataclass(frozen=True)
class LinkCheck:
    """Measured and nominal rate of a direction of a link, bit/s on the wire."""

    link: str
    measured: float
    nominal: float

    @property
    def ratio(self) -> float:
        return self.measured / self.nominal

    def within(self) -> bool:
        return abs(self.ratio - 1) <= TOLERANCE


#: Stream of bytes: sending host, receiving host, rail.
Stream = tuple[int, int, int]


def rings(lab: Lab) -> list[Stream]:
    """Return streams that keep every NIC busy, each with a link to itself."""
    found = []
    for host in lab.topology.hosts:
        for rail in range(lab.topology.rails):
            mates = sorted((*lab.topology.neighbor_hosts(host.index, rail), host.index))
            if len(mates) > 1:
                found.append((host.index, mates[(mates.index(host.index) + 1) % len(mates)], rail))
    return found


def across(lab: Lab) -> list[Stream]:
    """Return streams that cross the top of a Fat-Tree. The hosts of an edge switch send just what fills its trunk."""
    hosts, found = lab.topology.hosts, []
    room = {trunk.lower: round(trunk.factor) for trunk in lab.topology.trunks}
    for host in hosts:
        edge = host.nics[0].switch
        if room.get(edge, 0) > 0:
            room[edge] -= 1
            found.append((host.index, (host.index + len(hosts) // 2) % len(hosts), 0))
    return found


def check(lab: Lab, seconds: float = 2.0) -> list[LinkCheck]:
    """Measure every link but the head's, both ways, for so many seconds. Nominal rates are the kernel's.

    Nothing else should be sent meanwhile.

    :raises InputError: no two hosts share a segment, or a trunk cannot be measured.
    """
    if not seconds > 0:
        raise ConfError(f"seconds={seconds}: must be more than 0")
    if partial := [trunk.factor for trunk in lab.topology.trunks if not trunk.factor.is_integer()]:
        raise InputError(
            f"{lab.topology} has links between switches that are {partial[0]:g} times as fast as a NIC; only whole multiples"
            " can be measured, that is, oversub must divide k/2"
        )
    rates, streams = lab.rates(), rings(lab)
    if not streams:
        raise InputError(f"{lab.topology} has a single host: there is no link to check")
    speeds, found = measure(lab, streams, seconds), []
    for stream in streams:
        sender, receiver, rail = stream
        up, down = rates[sender, rail].up, rates[receiver, rail].down
        # The slower of the two decides; the other one cannot be seen.
        if up <= down:
            found.append(LinkCheck(f"host {sender} rail {rail} up", speeds[stream], up))
        if down <= up:
            found.append(LinkCheck(f"host {receiver} rail {rail} down", speeds[stream], down))
    return sorted(found, key=lambda link: link.link) + (_trunks(lab, seconds) if lab.topology.trunks else [])


def measure(lab: Lab, streams: list[Stream], seconds: float) -> dict[Stream, float]:
    """Return the bit/s on the wire of each stream, all in the same window. A NIC receives at most one stream.

    :raises DeadlineError: this machine is too busy to run all streams at once.
    """
    hosts = range(len(lab.topology.hosts))
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    wire = 8 * (lab.layout.mtu + _ETHERNET) / (lab.layout.mtu - _INNER_HEADERS)
    incoming = [[stream for stream in streams if stream[1] == host] for host in hosts]
    for attempt in range(_ATTEMPTS):
        start_up = _START_UP * len(hosts) * 2**attempt
        begin = time.monotonic() + start_up + _WARM_UP
        programs: list[tuple[HostId, list[str], Mapping[str, str]]] = []
        for host in hosts:
            job = {
                "listen": [(lab.address(host, rail), _PORT + attempt) for _, _, rail in incoming[host]],
                "send": [(lab.address(to, rail), _PORT + attempt) for by, to, rail in streams if by == host],
                "begin": begin,
                "seconds": seconds,
            }
            program = [sys.executable, traffic.__file__, json.dumps(job)]
            programs.append((host, program, environment))
        results = lab.run_each(programs, timeout=start_up + _WARM_UP + seconds + 2 * traffic.PATIENCE)
        found = [json.loads(result.stdout) for result in results]
        if max(arrived for received in found for _, arrived in received) <= begin - _WARM_UP:
            return {
                stream: wire * speed
                for received, mine in zip(found, incoming, strict=True)
                for (speed, _), stream in zip(received, mine, strict=True)
            }
    raise DeadlineError(
        f"the programs of {len(hosts)} hosts needed more than {start_up:g} s to start: machine too busy"
    )


def _trunks(lab: Lab, seconds: float) -> list[LinkCheck]:
    """Measure each trunk, up and down: the sum of the streams that cross it."""
    topology, streams = lab.topology, across(lab)
    speeds, found = measure(lab, streams, seconds), []
    parents = {trunk.lower: trunk.upper for trunk in topology.trunks}
    below = {host.index: [host.nics[0].switch, parents[host.nics[0].switch]] for host in topology.hosts}
    for index, trunk in enumerate(topology.trunks):
        for end, direction in ((0, "up"), (1, "down")):
            total = sum(speeds[stream] for stream in streams if trunk.lower in below[stream[end]])
            found.append(LinkCheck(f"trunk {trunk.lower}-{trunk.upper} {direction}", total, lab.layout.trunks[index]))
    return found
