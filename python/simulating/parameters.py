"""What a simulated network costs, and how that is found: fitted to a few measured cells, which are then not counted."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sparkdl_comm.collectives.cost import LOCAL_BETA, Cost
from sparkdl_comm.sim.network import HEADERS, ethernet_cost
from sparkdl_comm.topology import Topology

STARTUPS = (0.0, 2e-5, 5e-5, 1e-4)
LATENCIES = (0.0, 1e-4, 2e-4, 5e-4)
LOCALS = (1e-9, 2e-9, 3e-9, 4e-9)
SERVER_SLOWDOWNS = (1.05, 1.15, 1.25, 1.35, 1.45)
SERVER_STARTUPS = (0.0, 0.02, 0.04)
SERVER_GAPS = (0.0, 0.002, 0.003, 0.004, 0.005)


@dataclass(frozen=True)
class Parameters:
    """``startup``: seconds before each message. ``latency``: seconds until a message that was sent is with its receiver's
    program. ``local``: seconds per byte between processes of a host. ``update``: seconds for a byte of the parameters that
    all ranks of the machine update.

    Of the parameter server: ``server_slowdown``, how many times as long a byte takes as the link's rate says, for headers and
    for what is lost as all ranks fetch from all at once; ``server_startup``, seconds from asking for a batch to its first
    byte, of which ``server_gap`` follow those of others.
    """

    startup: float
    latency: float
    local: float = LOCAL_BETA
    update: float = 0.0
    server_slowdown: float = HEADERS
    server_startup: float = 0.0
    server_gap: float = 0.0

    def cost(self, topology: Topology) -> Cost:
        """With the topology's rates, less headers."""
        return ethernet_cost(topology, self.startup, self.local)


Simulated = Callable[[Parameters], float]


@dataclass(frozen=True)
class Known:
    """A cell that parameters are fitted to: ``seconds`` that were measured, ``nbytes`` of all ranks' parameters together."""

    seconds: float
    nbytes: int
    simulated: Simulated


def fitted(known: Mapping[str, Sequence[Known]]) -> Parameters:
    """Of a grid, those with which the mean error is least: start-up and latency of ``collectives``, the local rate of
    ``exchanges``, and those of ``server``; then the update that takes what is missing in ``steps``."""
    best = _least(known["collectives"], (Parameters(*pair) for pair in itertools.product(STARTUPS, LATENCIES)))
    best = _least(known["exchanges"], (replace(best, local=local) for local in LOCALS))
    served = itertools.product(SERVER_SLOWDOWNS, SERVER_STARTUPS, SERVER_GAPS)
    best = _least(
        known["server"],
        (replace(best, server_slowdown=slow, server_startup=start, server_gap=gap) for slow, start, gap in served),
    )
    missing = [(cell.seconds - cell.simulated(best)) / cell.nbytes for cell in known["steps"]]
    return replace(best, update=max(0.0, statistics.mean(missing)))


def _least(known: Sequence[Known], candidates: Iterable[Parameters]) -> Parameters:
    def error(parameters: Parameters) -> float:
        return statistics.mean(abs(cell.simulated(parameters) / cell.seconds - 1) for cell in known)

    return min(candidates, key=error)
