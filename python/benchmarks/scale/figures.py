"""What the lab cannot hold: figures of the papers at their sizes, in virtual time.

``fig5``: Songtao Wang and others, "BML: A High-performance, Low-cost Gradient Synchronization Algorithm for DML Training",
2018: an all-reduce on BCube and Fat-Tree, in times T_F that a link needs for all bytes. ``formula`` is the paper's, without
start-ups; that of `lp` follows from table 1 of its own. The vector is that of LeNet-5 or VGG-19, rounded up to equal parts for
all ranks; adding up takes no time. ``spent`` is what the simulation took, seconds of this machine. `p2p-ps` on BCube(32,2) is
left out, as its programs pass on eight million messages, and `lp` of VGG-19, all of whose ranks are run, for six million.

``fig4``: Linnan Wang and others, "Efficient Communications in Training Large Scale Neural Networks", 2016: collectives on 2
to 64 ranks, in blocks as the cost model says.

``commlib``: Shaohuai Shi and others, "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters", 2021:
the efficiency of 128 GPUs, 16 hosts with 8 each and one NIC of 25 Gbit/s. A step takes one GPU as long as the paper's
throughput of one GPU says; `hitopk` begins when backward has ended, and selecting takes no time.

``ibatch``: Shaoqi Wang, Aidi Pi and Xiaobo Zhou, "Scalable Distributed DL Training: Batching Communication and Computation",
2019: figures 5 and 7 on up to 72 nodes. Plans, and what they take, are the planner's in the plugin's jar. The paper's nodes
are on eight blades with one NIC of 10 Gbit/s each, which those of a blade share; nodes of one blade need no NIC for
what they send each other. As there, pulls are cut into batches, each asked for when the one before is here, and all gradients
are pushed after backward; `both ways` cuts both, on the same links, as this package does. The paper does not tell how fast a
node computes: it is so many times slower than the profile's device that `whole` on 30 nodes comes nearest to the paper's
speedups, one factor for all four networks. Nothing else is fitted. A communication's start-up is ``--batch-startup``.

``greedy``: each shipped profile, both directions, where all transfers take 0.5, 1 and 2 times as long as computing and a
start-up a hundredth or a thousandth of it.

Parameters are not those of the lab, whose ranks share two cores: a message's start-up is ``--startup``, headers are those of
Ethernet.
"""

from __future__ import annotations

import itertools
import math
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from benchmarks.command import Note
from benchmarks.ibatch.table import IBATCH_NODES, IBATCH_PAPER
from benchmarks.scale.group_run import hierarchical_top_k
from lab.arguments import names_of
from lab.bench import Row, versions

from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.cost import ALPHA
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.collectives.select import make_collective
from sparkdl_comm.jvm.planner import plan_buckets, predict_iteration_seconds
from sparkdl_comm.sim.network import HEADERS, ethernet_cost
from sparkdl_comm.sim.plan_run import round_up_count, simulate
from sparkdl_comm.sim.profile import PROFILES, Profile
from sparkdl_comm.sim.step_run import ITEMSIZE, ComputeTimings, step_seconds
from sparkdl_comm.topology import Topology

MBIT = 1e6
#: Networks, all of whose gradients are summed; (algorithm, topology, formula in T_F), of 16 and of 1,024 servers.
FIG5_NETWORKS = ("lenet5", "vgg19")
FIG5 = (
    ("bml", "bcube:4,2", 0.9375),
    ("p2p-ps", "bcube:4,2", 1.5),
    ("hierarchical", "fattree:4", 1.875),
    ("p2p-ps", "fattree:4", 1.875),
    ("bml", "bcube:32,2", 1023 / 1024),
    ("hierarchical", "fattree:16", 2 * 1023 / 1024),
    ("p2p-ps", "fattree:16", 2 * 1023 / 1024),
    ("ring", "star:1024", 2 * 1023 / 1024),
    ("lp", "star:1024", 2.0),
)
FIG5_LEFT_OUT = (("lp", "vgg19"),)
FIG5_RATE = "40gbit"
FIG4_RANKS = (2, 4, 8, 16, 32, 64)
FIG4: tuple[Operation, ...] = ("broadcast", "reduce", "all_reduce")
FIG4_NAMES = ("lp", "mst", "be")
FIG4_BYTES, FIG4_RATE = 64 << 20, "10gbit"
#: (network, its profile, seconds of a step on one GPU: 256 rows by the paper's samples/s of one GPU).
COMMLIB = (
    ("resnet50", "resnet50", 256 / 1150),
    ("resnet50-96", "resnet50", 256 / (113_280 / 0.201 / 128)),
    ("vgg19", "vgg19", 256 / 560),
)
COMMLIB_TOPOLOGY, COMMLIB_BUCKET, COMMLIB_DENSITY = "hosts:16x8,25gbit", 25 << 20, 0.001
#: Seconds per byte between two GPUs of a host: NVLink.
NVLINK = 1e-11
#: Of the iBatch paper.
BLADES, RATE = 8, 10e9
NODES = (2, 4, 8, 16, IBATCH_NODES, 72)
#: Of the planner; `paper` is iBatch's better one of two greedy plans.
WAYS = ("paper", "whole", "layerwise")
BOTH_WAYS = "both ways"
SLOWDOWNS = tuple(number / 4 for number in range(4, 25))
GREEDY = ("greedy1", "greedy2", "ibatch")
RATIOS, STARTUPS = (0.5, 1.0, 2.0), (0.001, 0.01)
Seconds = list[float]
PARTS = ("fig5", "fig4", "commlib", "ibatch", "greedy")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--scale", action="store_true", help="the papers' figures at their sizes")
    parser.add_argument("--figures", type=names_of(PARTS), default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--startup", type=float, default=ALPHA, help="seconds before each message")
    parser.add_argument("--batch-startup", type=float, default=1e-3, help="seconds before a batch of layers travels")


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    made = {
        "fig5": _fig5,
        "fig4": _fig4,
        "commlib": _commlib,
        "ibatch": _ibatch,
        "greedy": _greedy,
    }
    for figure in options.figures:
        yield from made[figure](options)


def _fig5(options: Namespace) -> Iterator[Row]:
    for network in FIG5_NETWORKS:
        parameters = Profile.load(network).parameters
        for name, text, formula in FIG5[: 2 if options.quick else None]:
            if (name, network) in FIG5_LEFT_OUT:
                continue
            topology = Topology.parse(text).with_rates(FIG5_RATE)
            count = round_up_count(topology, parameters)
            cost = replace(ethernet_cost(topology, options.startup), gamma=0.0)
            begun = time.perf_counter()
            plan = make_plan(name, make_collective(name, "all_reduce", topology, count, ITEMSIZE, cost))
            found = simulate(plan, cost)
            spent = time.perf_counter() - begun
            link = ITEMSIZE * parameters * 8 / topology.rates[0]
            extra = {"formula": formula, "links": found.seconds / link, "simulated": found.simulated, "spent": spent}
            yield _row("fig5", name, topology, ITEMSIZE * count, found.seconds, formula * link, extra)


def _fig4(options: Namespace) -> Iterator[Row]:
    for operation in FIG4:
        for name in FIG4_NAMES:
            for world in FIG4_RANKS[: 2 if options.quick else None]:
                topology = Topology.parse(f"star:{world}").with_rates(FIG4_RATE)
                cost = ethernet_cost(topology, options.startup)
                collective = make_collective(name, operation, topology, FIG4_BYTES // ITEMSIZE, ITEMSIZE, cost)
                seconds = simulate(make_plan(name, collective), cost).seconds
                link = FIG4_BYTES * 8 / topology.rates[0]
                least = link * (2 * (world - 1) / world if operation == "all_reduce" else 1)
                yield _row(operation, name, topology, FIG4_BYTES, seconds, least, {"links": seconds / link})


def _commlib(options: Namespace) -> Iterator[Row]:
    topology = Topology.parse("hosts:2x2,25gbit" if options.quick else COMMLIB_TOPOLOGY)
    cost = ethernet_cost(topology, options.startup, NVLINK)
    for network, name, alone in COMMLIB[: 1 if options.quick else None]:
        profile = Profile.load(name)
        computing = ComputeTimings.of(profile, alone / profile.seconds, COMMLIB_BUCKET)
        found = {way: step_seconds(way, topology, computing, cost) for way in ("tree", "torus2d")}
        found["hitopk"] = alone + hierarchical_top_k(topology, profile.parameters, COMMLIB_DENSITY, cost)
        for way, seconds in found.items():
            extra = {"network": network, "efficiency": 100 * alone / seconds}
            yield _row("commlib", way, topology, ITEMSIZE * profile.parameters, seconds, alone, extra)


def _row(
    case: str,
    algorithm: str,
    topology: Topology,
    nbytes: int,
    seconds: float,
    least: float,
    extra: dict[str, float | str],
) -> Row:
    return Row(
        suite="sim",
        case=case,
        algorithm=algorithm,
        topology=topology.text,
        rate_mbit=topology.rates[0] / MBIT,
        world=topology.world,
        bytes=nbytes,
        samples=[seconds],
        theory_seconds=least,
        verified=seconds >= least,
        compute="emulated",
        versions=versions("numpy"),
        extra=extra,
    )


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


def _ibatch(options: Namespace) -> Iterator[Row]:
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
        yield _ibatch_row(nodes, way, _iteration(nodes, plan.predicted_seconds), pulled + nodes.communication)
    for nodes, seconds in zip(every, predict_iteration_seconds([nodes.both() for nodes in every]), strict=True):
        yield _ibatch_row(nodes, BOTH_WAYS, seconds, None)


def _greedy(options: Namespace) -> Iterator[Row]:
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


def _ibatch_row(nodes: Nodes, way: str, seconds: float, communication: float | None) -> Row:
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
