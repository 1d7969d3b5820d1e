"""What a simulated network costs, and how that is found: fitted to a few measured cells, which are then not counted."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sparkdl_comm.collectives.cost import LOCAL_BETA, Cost
from sparkdl_comm.sim.network import ethernet_cost
from sparkdl_comm.topology import Topology

STARTUPS = (0.0, 2e-5, 5e-5, 1e-4)
LATENCIES = (0.0, 1e-4, 2e-4, 5e-4)
LOCALS = (1e-9, 2e-9, 3e-9, 4e-9)
SERVER_STARTUPS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
HANDLINGS = (0.0, 0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003)


@dataclass(frozen=True)
class Parameters:
    """``startup``: seconds before each message. ``latency``: seconds until a message that was sent is with its receiver's
    program. ``local``: seconds per byte between processes of a host. ``update``: seconds for a byte of the parameters that
    all ranks of the machine update.

    Of the parameter server: ``server_startup``, seconds from asking for a batch to its first byte; ``handling``, seconds of a
    worker for each batch of gradients, however small.
    """

    startup: float
    latency: float
    local: float = LOCAL_BETA
    update: float = 0.0
    server_startup: float = 0.0
    handling: float = 0.0

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
    ``exchanges``, the start-up of ``server``, the handling of ``batches``; then the update that takes what is missing in
    ``steps``."""
    best = _least(known["collectives"], (Parameters(*pair) for pair in itertools.product(STARTUPS, LATENCIES)))
    best = _least(known["exchanges"], (replace(best, local=local) for local in LOCALS))
    best = _least(known["server"], (replace(best, server_startup=startup) for startup in SERVER_STARTUPS))
    best = _least(known["batches"], (replace(best, handling=seconds) for seconds in HANDLINGS))
    missing = [(cell.seconds - cell.simulated(best)) / cell.nbytes for cell in known["steps"]]
    return replace(best, update=max(0.0, statistics.mean(missing)))


def _least(known: Sequence[Known], candidates: Iterable[Parameters]) -> Parameters:
    def error(parameters: Parameters) -> float:
        return statistics.mean(abs(cell.simulated(parameters) / cell.seconds - 1) for cell in known)

    return min(candidates, key=error)
