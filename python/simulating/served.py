"""Cells of the parameter server: iterations with layers in batches, whose computing is emulated."""

from __future__ import annotations

import math

from lab.bench import Row
from simulating.parameters import Parameters, Simulated

from sparkdl_comm.sim.network import HEADERS
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.sim.server_run import SIMPLE_BATCHINGS, Batch, ServedLayer, ServerCost, iteration_seconds
from sparkdl_comm.sim.step_run import ITEMSIZE

#: Ways to cut layers into batches that can be simulated: of the last one the row has the plans.
WAYS = (*SIMPLE_BATCHINGS, "ibatch")


def served(row: Row) -> Simulated:
    """What gives the seconds of an iteration of the row."""
    full = Profile.load(row.case)
    forward = math.fsum(layer.forward for layer in full.layers)
    profile = full.scaled(row.extra["scale"], row.extra["forward_seconds"] / forward)
    share = ITEMSIZE * (row.world - 1) / row.world
    layers = [ServedLayer(layer.forward, layer.backward, share * layer.parameters) for layer in profile.layers]
    pulls, pushes = (_batches(row, way, len(layers)) for way in ("pull", "push"))
    beta = HEADERS * 8 / ((row.rate_mbit or 0.0) * 1e6)
    # Start-ups that are slowed down follow one another at each server (SlowStart.scala).
    delay = row.extra["delay"]

    def simulated(parameters: Parameters) -> float:
        startup = parameters.server_startup + delay
        cost = ServerCost(beta, startup, delay, handling=parameters.handling)
        return iteration_seconds(layers, pulls, pushes, cost)

    return simulated


def _batches(row: Row, way: str, layers: int) -> list[Batch]:
    """In the order of the layers."""
    if row.algorithm in SIMPLE_BATCHINGS:
        return SIMPLE_BATCHINGS[row.algorithm](layers)
    return sorted((first - 1, last - 1) for first, last in row.extra["plans"][way])
