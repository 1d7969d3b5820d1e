"""The iBatch paper's figures 5 and 7 on up to 72 nodes, and its greedy algorithms beside the exact plan. Plans, and what they
take, are the planner's in the plugin's jar.

Shaoqi Wang, Aidi Pi and Xiaobo Zhou, "Scalable Distributed DL Training: Batching Communication and Computation", 2019. Its
nodes are on eight blades with one NIC of 10 Gbit/s each, which those of a blade share; nodes of one blade need no NIC for
what they send each other. As there, pulls are cut into batches, each asked for when the one before is here, and all gradients
are pushed after backward; `both ways` cuts both, on the same links, as this package does. The paper does not tell how fast a
node computes: it is so many times slower than the profile's device that `whole` on 30 nodes comes nearest to the paper's
speedups, one factor for all four networks. Nothing else is fitted. A communication's start-up is ``--batch-startup``.

``greedy``: each shipped profile, both directions, where all transfers take 0.5, 1 and 2 times as long as computing and a
start-up a hundredth or a thousandth of it.
"""

from __future__ import annotations

import itertools
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lab.bench import Row, versions
from tables.paper import IBATCH_NODES, IBATCH_PAPER

from sparkdl_comm.jvm.planner import plan_buckets, predict_iteration_seconds
from sparkdl_comm.sim.network import HEADERS
from sparkdl_comm.sim.profile import PROFILES, Profile
from sparkdl_comm.sim.step_run import ITEMSIZE

BLADES, RATE = 8, 10e9
NODES = (2, 4, 8, 16, IBATCH_NODES, 72)
#: Of the planner; `paper` is iBatch's better one of two greedy plans.
WAYS = ("paper", "whole", "layerwise")
BOTH_WAYS = "both ways"
SLOWDOWNS = tuple(number / 4 for number in range(4, 25))
GREEDY = ("greedy1", "greedy2", "ibatch")
RATIOS, STARTUPS = (0.5, 1.0, 2.0), (0.001, 0.01)

Seconds = list[float]


@dataclass(frozen=True)
class Nodes:
    """``count`` nodes that train a network, on a device ``slowdown`` times slower than the profile's."""

    network: str
    count: int
    slowdown: float
    startup: float

    @cached_property
    def layers(self) -> tuple[Seconds, Seconds, Seconds]:
        """Of each layer: seconds of forward, of backward, and of its transfer one way."""
        layers = Profile.load(self.network).layers
        sharing = math.ceil(self.count / BLADES)
        away = max(1, self.count - sharing) / self.count * sharing
        byte = ITEMSIZE * 8 * HEADERS / RATE * away
        return (
            [layer.forward * self.slowdown for layer in layers],
            [layer.backward * self.slowdown for layer in layers],
            [layer.parameters * byte for layer in layers],
        )

    @property
    def computing(self) -> float:
        forward, backward, _ = self.layers
        return math.fsum(forward) + math.fsum(backward)

    @property
    def communication(self) -> float:
        """Of gradients, in one."""
        return self.startup + math.fsum(self.layers[2])

    def pulls(self, way: str) -> dict[str, Any]:
        """What the planner is asked."""
        forward, _, transfer = self.layers
        profile = {"startup": self.startup, "transfer": transfer, "compute": forward, "in_turn": True}
        return {**profile, "policy": way, "direction": "pull"}

    def both(self) -> dict[str, Any]:
        forward, backward, transfer = self.layers
        return {
            way: {"startup": self.startup, "transfer": transfer, "compute": compute}
            for way, compute in (("pull", forward), ("push", backward))
        }


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--batch-startup", type=float, default=1e-3, help="seconds before a batch of layers travels")


def scaling(options: Namespace) -> Iterator[Row]:
    """A row for each network, number of nodes and way."""
    networks, counts = list(IBATCH_PAPER), NODES
    if options.quick:
        networks, counts = networks[:1], (IBATCH_NODES,)
    slowdown = _slowdown(networks, options.batch_startup)
    every = [Nodes(network, count, slowdown, options.batch_startup) for network in networks for count in counts]
    cases = list(itertools.product(every, WAYS))
    plans = plan_buckets([nodes.pulls(way) for nodes, way in cases])
    for (nodes, way), plan in zip(cases, plans, strict=True):
        pulled = nodes.startup * len(plan.batches) + math.fsum(nodes.layers[2])
        yield _row(nodes, way, _iteration(nodes, plan.predicted_seconds), pulled + nodes.communication)
    for nodes, seconds in zip(every, predict_iteration_seconds([nodes.both() for nodes in every]), strict=True):
        yield _row(nodes, BOTH_WAYS, seconds, None)


def greedy(options: Namespace) -> Iterator[Row]:
    """A row for each profile and policy, of all its cases together."""
    for path in sorted(PROFILES.glob("*.json"))[: 1 if options.quick else None]:
        cases = list(_cases(Profile.read(path)))
        plans = {
            policy: plan_buckets([{**case, "policy": policy} for case in cases]) for policy in (*GREEDY, "optimal")
        }
        least = [plan.predicted_seconds for plan in plans["optimal"]]
        for policy in GREEDY:
            seconds = [plan.predicted_seconds for plan in plans[policy]]
            yield Row(
                suite="sim",
                case="greedy",
                algorithm=policy,
                topology="one link",
                rate_mbit=None,
                world=2,
                bytes=ITEMSIZE * Profile.read(path).parameters,
                samples=[math.fsum(seconds)],
                theory_seconds=math.fsum(least),
                verified=all(one >= best * (1 - 1e-9) for one, best in zip(seconds, least, strict=True)),
                compute="emulated",
                versions=versions("sparkdl_comm"),
                extra={
                    "network": path.stem,
                    "over_optimum": [one / best for one, best in zip(seconds, least, strict=True)],
                },
            )


def _cases(profile: Profile) -> Iterator[dict[str, Any]]:
    for direction, ratio, startup in itertools.product(("pull", "push"), RATIOS, STARTUPS):
        compute = [layer.forward if direction == "pull" else layer.backward for layer in profile.layers]
        computing = math.fsum(compute)
        transfer = [ratio * computing * layer.parameters / profile.parameters for layer in profile.layers]
        yield {"startup": startup * computing, "transfer": transfer, "compute": compute, "direction": direction}


def _iteration(nodes: Nodes, pulling: float) -> float:
    """Pulls beside forward, then backward, then all gradients."""
    return pulling + math.fsum(nodes.layers[1]) + nodes.communication


def _slowdown(networks: Sequence[str], startup: float) -> float:
    """With which `whole` is nearest to the paper's speedups, in the mean."""

    def error(slowdown: float) -> float:
        wrong = []
        for network in networks:
            nodes = Nodes(network, IBATCH_NODES, slowdown, startup)
            pulling = nodes.communication + math.fsum(nodes.layers[0])
            speedup = nodes.count * nodes.computing / _iteration(nodes, pulling)
            wrong.append(abs(speedup / IBATCH_PAPER[network][1] - 1))
        return math.fsum(wrong)

    return min(SLOWDOWNS, key=error)


def _row(nodes: Nodes, way: str, seconds: float, communication: float | None) -> Row:
    sharing = math.ceil(nodes.count / BLADES)
    extra: dict[str, Any] = {
        "network": nodes.network,
        "nodes": nodes.count,
        "slowdown": nodes.slowdown,
        "speedup": nodes.count * nodes.computing / seconds,
    }
    if communication is not None:
        overlapping = max(0.0, nodes.computing + communication - seconds)
        extra["split"] = {
            "overlapping": overlapping,
            "communication": communication - overlapping,
            "computation": nodes.computing - overlapping,
        }
    return Row(
        suite="sim",
        case="ibatch",
        algorithm=way,
        topology=f"hosts:{min(BLADES, nodes.count)}x{sharing}",
        rate_mbit=RATE / 1e6,
        world=nodes.count,
        bytes=ITEMSIZE * Profile.load(nodes.network).parameters,
        samples=[seconds],
        theory_seconds=nodes.computing,
        verified=seconds >= nodes.computing,
        compute="emulated",
        versions=versions("sparkdl_comm"),
        extra=extra,
    )
