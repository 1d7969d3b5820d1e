"""Cluster of network namespaces on one Linux machine, with links of given rates."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from lab import state
from lab.access import COMMAND_SECONDS, Access, Mode, close_access, open_access
from lab.cluster import Cluster
from lab.layout import CONTROL, HostId, Layout, RailId, check_rate, shaper
from lab.loopback import Loopback
from lab.rates import LinkRate, RateSchedule
from lab.removal import exit_on_signals, layout_of, tear_down
from sparkdl_comm.errors import DeadlineError, LabError
from sparkdl_comm.topology import Topology

_FIRST_PORT, _PORTS = 29500, 1000


@dataclass(frozen=True)
class Traffic:
    """Bytes that a NIC has sent and received since the lab was set up.

    The kernel counts one header for a large packet of up to 45 segments.
    """

    sent: int
    received: int


class Lab(Cluster):
    """Hosts, switches and links::

        with Lab("bcube:3,2", rate="200mbit") as lab:
            results = lab.run([sys.executable, "ring.py"], timeout=60)
            print(lab.counters()[0, 1].sent)

    Leaving the block removes everything, also after an exception. SIGINT, SIGTERM and SIGHUP become exceptions.
    :func:`~lab.removal.remove` (``python/sparkdl-lab down``) removes the rest of a killed program's lab.

    In a user namespace, where we are not root, the launching namespace is not on the control network.

    :param topology: topology or its text, with rates unless ``rate`` is given.
    :param rate: rate of every NIC, each way: ``200mbit``, or bit/s.
    :param name: unique name. Default: a name that no other process has.
    :param mtu: bytes.
    :param mode: "root" or "userns". Default: the allowed one.
    :param kept: this process only keeps the lab, and ``python/sparkdl-lab down`` may end it.
    :raises ConfError: an unknown topology, a rate or MTU out of range, too many hosts.
    :raises LabError: (on entering) a lab of this name exists, no permission, a missing tool.
    """

    def __init__(
        self,
        topology: Topology | str,
        rate: str | int | None = None,
        *,
        name: str | None = None,
        mtu: int = 1500,
        mode: Mode | None = None,
        kept: bool = False,
    ) -> None:
        topology = Topology.parse(topology) if isinstance(topology, str) else topology
        self.topology = topology if rate is None else topology.with_rates(rate)
        self.name = state.check_name(_unique_name() if name is None else name)
        self.layout = Layout(self.name, self.topology, 0, mtu)
        self._mode: Mode | None = mode
        self._kept = kept
        self._access: Access | None = None
        self._started = []
        self._ports = 0
        self._undo = contextlib.ExitStack()

    @staticmethod
    def loopback(topology: Topology | str) -> Loopback:
        """Return a cluster of the same shape on the loopback interface, for tests of correctness."""
        return Loopback(Topology.parse(topology) if isinstance(topology, str) else topology)

    @classmethod
    def attach(cls, name: str) -> Lab:
        """Return a lab that another process keeps. It can be used, but not ended.

        :raises LabError: there is no such lab, or its owner is gone.
        """
        found = state.load(name)
        if not found.alive:
            raise LabError(
                f"lab {name!r} was left by process {found.owner}, which is gone: `python/sparkdl-lab down {name}`"
            )
        lab = cls(found.topology, name=name, mtu=found.mtu)
        lab.layout = layout_of(found)
        lab._access = Access(found.holder)
        return lab

    def __enter__(self) -> Lab:
        if self._access is not None:
            raise LabError(f"lab {self.name!r} is up already")
        with contextlib.ExitStack() as undo:
            undo.enter_context(exit_on_signals())
            self._access = access = open_access(self._mode)
            undo.callback(self._forget_access)
            claimed = state.claim(self.name, str(self.topology), self.layout.mtu, access.holder, self._kept)
            self.layout = layout_of(claimed)
            undo.callback(tear_down, access, self.layout)
            undo.callback(self._kill_started)
            self._set_up(access)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def _forget_access(self) -> None:
        access, self._access = self._access, None
        if access is not None:
            close_access(access)

    def _set_up(self, access: Access) -> None:
        layout = self.layout
        access.batch("ip", layout.outer_lines())
        access.batch("ip", layout.switch_lines(), layout.switches)
        access.batch("tc", layout.switch_shapers(), layout.switches)
        for node in layout.nodes:
            access.batch("ip", layout.node_lines(node), node.namespace)
            access.batch("tc", layout.node_shapers(node), node.namespace)

    @property
    def access(self) -> Access:
        """Access of commands to the lab.

        :raises LabError: the lab is not up.
        """
        if self._access is None:
            raise LabError(f"lab {self.name!r} is not up: use it in a `with` block")
        return self._access

    def address(self, host: HostId, rail: RailId = 0) -> str:
        return self.layout.address(host, rail)

    def command(self, host: HostId, argv: Sequence[str]) -> list[str]:
        return self.access.in_namespace(self.layout.node(host).namespace, argv)

    def _port(self) -> int:
        # Nobody else is in these namespaces. Each run gets another port, as old connections may linger.
        self._ports += 1
        return _FIRST_PORT + self._ports % _PORTS

    # --- rates and counters ---------------------------------------------------------------------------------------

    def set_rate(self, host: HostId, rail: int = 0, up: str | int | None = None, down: str | int | None = None) -> None:
        """Change a link at once: ``up`` from the host to its switch, ``down`` the other way. None keeps the rate.

        :raises ConfError: no such host or rail, or a rate out of range.
        """
        node = self.layout.node(host)
        self.layout.check_rail(host, rail)
        for rate, interface, where in (
            (up, node.interface(rail), node.namespace),
            (down, node.port(rail), self.layout.switches),
        ):
            if rate is not None:
                self.access.batch("tc", [shaper(interface, check_rate(rate), "change")], where)

    def set_rates(self, rates: Mapping[tuple[int, int], LinkRate]) -> None:
        """Change many links, by host and rail, with few commands."""
        here: dict[str, list[str]] = {}
        for (host, rail), link in rates.items():
            node = self.layout.node(host)
            self.layout.check_rail(host, rail)
            here.setdefault(node.namespace, []).append(shaper(node.interface(rail), check_rate(link.up), "change"))
            down = shaper(node.port(rail), check_rate(link.down), "change")
            here.setdefault(self.layout.switches, []).append(down)
        for namespace, lines in here.items():
            self.access.batch("tc", lines, namespace)

    def rates(self) -> dict[tuple[HostId, int], LinkRate]:
        """Return the current rate of each link, as the kernel has it."""
        down = self._shaped(self.layout.switches)
        found: dict[tuple[HostId, int], LinkRate] = {}
        for node in self.layout.nodes:
            up = self._shaped(node.namespace)
            for rail in self.layout.rails_of(node.id):
                found[node.id, rail] = LinkRate(up[node.interface(rail)], down[node.port(rail)])
        return found

    def _shaped(self, namespace: str) -> dict[str, int]:
        """Return the bit/s of interfaces with a shaper, by name."""
        rows = json.loads(self.access.run("tc", "-netns", namespace, "-json", "qdisc", "show"))
        return {row["dev"]: row["options"]["rate"] * 8 for row in rows if row["kind"] == "tbf"}

    def counters(self) -> dict[tuple[HostId, RailId], Traffic]:
        """Return the traffic of every NIC, by host (or "head") and rail (or "control")."""
        rows = json.loads(self.access.run("ip", "-netns", self.layout.switches, "-statistics", "-json", "link", "show"))
        ports = {row["ifname"]: row["stats64"] for row in rows}
        found: dict[tuple[HostId, RailId], Traffic] = {}
        for node in self.layout.nodes:
            for rail in (*self.layout.rails_of(node.id), CONTROL):
                port = ports[node.port(rail)]  # the switch receives what the host sends
                found[node.id, rail] = Traffic(port["rx"]["bytes"], port["tx"]["bytes"])
        return found

    @contextlib.contextmanager
    def schedule(
        self, schedule: RateSchedule, begins: Callable[[threading.Event], object] | None = None
    ) -> Iterator[None]:
        """Redraw the hosts' rates while the block runs, then set the nominal ones again. The first draw is set at once.

        :param begins: called in a thread. It returns when the first period begins, or when its event is set. None: the
            first period begins at once.
        :raises ConfError: (at once) links cannot be shaped to a share of the nominal rate.
        """
        for share in schedule.shares:
            for rate in self.topology.rates:
                check_rate(round(share * rate), f"share {share:g} of the rate:")
        self.set_rates(schedule.draw(0, self.topology))
        over = threading.Event()
        failures: list[Exception] = []

        def redraw() -> None:
            if begins is not None:
                begins(over)
            begun, step = time.monotonic(), 1
            while not over.wait(max(0.0, begun + step * schedule.period - time.monotonic())):
                try:
                    self.set_rates(schedule.draw(step, self.topology))
                except (LabError, DeadlineError) as exc:
                    failures.append(exc)
                    return
                step += 1

        thread = threading.Thread(target=redraw, name="sparkdl-lab-rates", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(COMMAND_SECONDS)
        if failures:
            raise failures[0]
        rates = self.topology.rates
        self.set_rates(
            {(h.index, r): LinkRate(rates[r], rates[r]) for h in self.topology.hosts for r in range(len(rates))}
        )


_made = 0


def _unique_name() -> str:
    global _made
    _made += 1
    return f"lab-{os.getpid()}-{_made}"
