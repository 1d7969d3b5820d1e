"""Names, addresses and set-up commands of a lab. Pure.

Each host has a network namespace. So does the head, where a driver or a launcher runs. All switches are bridges in one
more namespace, where no firewall of the machine sees their traffic. A link is a veth pair with a token bucket (``tbf``)
on both ends. The host's end shapes what it sends, the switch's end what it receives.

Host h has the address 10.<rail+1>.<segment>.<h+1> on each rail and 198.18.<lab>.<h+1> on the control network. That network
is not shaped, and also reaches the launching namespace. The head is on host 0's segment of rail 0. In a BCube, hosts
forward: routes to other segments lead over neighbors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology
from sparkdl_comm.units import format_rate, parse_rate

HostId = int | Literal["head"]
RailId = int | Literal["control"]

HEAD: Literal["head"] = "head"
CONTROL: Literal["control"] = "control"

#: Host numbers are the last byte of an address, next to the head's and the launcher's.
MAX_HOSTS = 250
_HEAD_BYTE, _LAUNCHER_BYTE = 254, 253
MIN_RATE, MAX_RATE = 10**6, 10 * 10**9
MIN_MTU, MAX_MTU = 576, 9000
#: Bytes. A GSO packet has 64 KiB: with less tbf cuts it up, which costs more time than sending.
_BURST = 80 * 1024
#: Longest queue of a link, in time.
_QUEUE = "50ms"

# reno: the kernel's BBR needs 1.2 to 1.3 times as long on several rails. No IPv6: its own packets would be counted.
_SETTINGS = {
    "net/ipv4/tcp_congestion_control": "reno",
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
}


def check_rate(rate: str | int, what: str = "rate") -> int:
    """Return a link's rate in bit/s.

    :raises ConfError: links cannot be shaped to it.
    """
    value = parse_rate(rate)
    if not MIN_RATE <= value <= MAX_RATE:
        raise ConfError(f"{what} {rate}: must be from {format_rate(MIN_RATE)} to {format_rate(MAX_RATE)}")
    return value


def shaper(interface: str, rate: int, verb: str = "add") -> str:
    """Return the line for ``tc -batch`` that shapes the traffic out of an interface."""
    return f"qdisc {verb} dev {interface} root tbf rate {rate}bit burst {_BURST} latency {_QUEUE}"


@dataclass(frozen=True)
class Node:
    """Host or head: its namespace, and its interfaces by rail."""

    id: HostId
    namespace: str
    number: int

    def interface(self, rail: RailId) -> str:
        """Return the name of its NIC in its namespace."""
        return "control" if rail == CONTROL else f"rail{rail}"

    def port(self, rail: RailId) -> str:
        """Return the name of the switch's end of the link."""
        return f"{self.number}c" if rail == CONTROL else f"{self.number}r{rail}"


@dataclass(frozen=True)
class Layout:
    """Namespaces, interfaces and addresses of a topology. ``control``: number of its control network."""

    name: str
    topology: Topology
    control: int
    mtu: int = 1500

    def __post_init__(self) -> None:
        if len(self.topology.hosts) > MAX_HOSTS:
            raise ConfError(f"{self.topology} has {len(self.topology.hosts)} hosts; a lab can have {MAX_HOSTS}")
        if not MIN_MTU <= self.mtu <= MAX_MTU:
            raise ConfError(f"mtu {self.mtu}: must be from {MIN_MTU} to {MAX_MTU} bytes")
        if not self.topology.rates:
            raise ConfError(f"{self.topology}: a lab needs a rate, such as rate='200mbit' or {self.topology},200mbit")
        for rate in self.topology.rates:
            check_rate(rate)
        for trunk in self.trunks.values():
            check_rate(trunk, f"{self.topology}: a link between switches would have the rate")

    @property
    def nodes(self) -> list[Node]:
        """The hosts, then the head."""
        return [self.node(host.index) for host in self.topology.hosts] + [self.node(HEAD)]

    @property
    def switches(self) -> str:
        """The namespace of the switches."""
        return f"sparkdl.{self.name}.switches"

    @property
    def namespaces(self) -> list[str]:
        return [self.switches, *(node.namespace for node in self.nodes)]

    @property
    def uplink(self) -> str:
        """The interface of the launching namespace on the control network."""
        return f"sparkdl{self.control}"

    @property
    def trunks(self) -> dict[int, int]:
        """Index of a trunk -> its rate in bit/s, each way."""
        switches, rates = self.topology.switches, self.topology.rates
        return {
            index: round(trunk.factor * rates[switches[trunk.lower].rail])
            for index, trunk in enumerate(self.topology.trunks)
        }

    def node(self, host: HostId) -> Node:
        """Return the host of this index, or the head.

        :raises ConfError: there is no such host.
        """
        if host == HEAD:
            return Node(HEAD, f"sparkdl.{self.name}.head", _HEAD_BYTE)
        if not isinstance(host, int) or not 0 <= host < len(self.topology.hosts):
            raise ConfError(f"host {host!r}: {self.topology} has hosts 0 to {len(self.topology.hosts) - 1}, and head")
        return Node(host, f"sparkdl.{self.name}.h{host}", host + 1)

    def rails_of(self, host: HostId) -> range:
        return range(1 if host == HEAD else self.topology.rails)

    def check_rail(self, host: HostId, rail: int) -> None:
        """Raise ConfError if the host has no such NIC."""
        if rail not in self.rails_of(self.node(host).id):
            raise ConfError(f"rail {rail}: host {host} of {self.topology} has {len(self.rails_of(host))}, from 0 on")

    def address(self, host: HostId, rail: RailId = 0) -> str:
        """Return the IPv4 address of a NIC."""
        node = self.node(host)
        if rail == CONTROL:
            return f"198.18.{self.control}.{node.number}"
        self.check_rail(host, rail)
        segment = 0 if node.id == HEAD else self.topology.segment_of(int(node.id), rail)
        return f"10.{rail + 1}.{segment}.{node.number}"

    @property
    def launcher_address(self) -> str:
        """The launching namespace's address on the control network."""
        return f"198.18.{self.control}.{_LAUNCHER_BYTE}"

    # --- set-up: lines for `ip -batch` and `tc -batch`, in this order ---------------------------------------------

    def outer_lines(self) -> list[str]:
        """Return lines for ``ip`` in the launching namespace: all namespaces, their settings, and the links."""
        lines = [f"netns add {namespace}" for namespace in self.namespaces]
        writes = "; ".join(f"echo {value} > /proc/sys/{key}" for key, value in _SETTINGS.items())
        lines += [f'netns exec {namespace} sh -c "{writes}"' for namespace in self.namespaces]
        for node in self.nodes:
            for rail in (*self.rails_of(node.id), CONTROL):
                here = f"name {node.interface(rail)} mtu {self.mtu} netns {node.namespace}"
                lines.append(
                    f"link add {here} type veth peer name {node.port(rail)} mtu {self.mtu} netns {self.switches}"
                )
        lines += [
            f"link add name {self.uplink} mtu {self.mtu} type veth peer name uplink mtu {self.mtu} netns {self.switches}",
            f"addr add {self.launcher_address}/24 dev {self.uplink}",
            f"link set {self.uplink} up",
        ]
        return lines

    def switch_lines(self) -> list[str]:
        """Return lines for ``ip`` in the namespace of the switches."""
        bridges = {f"s{switch.index}": self._ports(switch.index) for switch in self.topology.switches}
        bridges["control"] = ["uplink", *(node.port(CONTROL) for node in self.nodes)]
        lines = []
        for index in range(len(self.topology.trunks)):
            lines.append(f"link add name t{index}up mtu {self.mtu} type veth peer name t{index}down mtu {self.mtu}")
        for bridge, ports in bridges.items():
            lines.append(f"link add name {bridge} mtu {self.mtu} type bridge forward_delay 0 mcast_snooping 0")
            lines += [f"link set {port} master {bridge} up" for port in ports]
            lines.append(f"link set {bridge} up")
        return lines

    def _ports(self, switch: int) -> list[str]:
        nics = (nic for host in self.topology.hosts for nic in host.nics if nic.switch == switch)
        ports = [self.node(nic.host).port(nic.rail) for nic in nics]
        if switch == self.topology.hosts[0].nics[0].switch:
            ports.append(self.node(HEAD).port(0))
        for index, trunk in enumerate(self.topology.trunks):
            ports += [f"t{index}up"] if trunk.lower == switch else []
            ports += [f"t{index}down"] if trunk.upper == switch else []
        return ports

    def node_lines(self, node: Node) -> list[str]:
        """Return lines for ``ip`` in the node's namespace: addresses and routes."""
        lines = ["link set lo up"]
        for rail in (*self.rails_of(node.id), CONTROL):
            lines.append(f"addr add {self.address(node.id, rail)}/24 dev {node.interface(rail)}")
            lines.append(f"link set {node.interface(rail)} up")
        if node.id == HEAD:
            return [*lines, f"route add 10.0.0.0/8 via {self.address(0)}"]
        for switch in self.topology.switches:
            relay = self.topology.next_hop(int(node.id), switch.rail, switch.segment)
            if relay is not None:
                via = self.address(relay.host, relay.rail)
                lines.append(f"route replace 10.{switch.rail + 1}.{switch.segment}.0/24 via {via}")
        return lines

    def node_shapers(self, node: Node) -> list[str]:
        """Return lines for ``tc`` in the node's namespace."""
        return [shaper(node.interface(rail), self.topology.rates[rail]) for rail in self.rails_of(node.id)]

    def switch_shapers(self) -> list[str]:
        """Return lines for ``tc`` in the namespace of the switches."""
        lines = [
            shaper(node.port(rail), self.topology.rates[rail]) for node in self.nodes for rail in self.rails_of(node.id)
        ]
        for index, rate in self.trunks.items():
            lines += [shaper(f"t{index}up", rate), shaper(f"t{index}down", rate)]
        return lines
