"""Figures of the papers at sizes that the lab cannot hold, in virtual time.

``fig5``: Songtao Wang and others, "BML: A High-performance, Low-cost Gradient Synchronization Algorithm for DML
Training", 2018. An all-reduce on BCube and Fat-Tree, in times T_F that a link needs for all bytes. ``formula`` is the
paper's, without start-ups; that of `lp` follows from table 1 of its own paper. Adding up takes no time. ``spent``: seconds
of the simulation itself. `p2p-ps` on BCube(32,2) and `lp` of VGG-19 are left out, as they send millions of messages.

``fig4``: Linnan Wang and others, "Efficient Communications in Training Large Scale Neural Networks", 2016. Collectives on
2 to 64 ranks, in the cost model's blocks.

``commlib``: Shaohuai Shi and others, "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters",
2021. The efficiency of 16 hosts with 8 GPUs and one NIC of 25 Gbit/s each. A step's computing follows from the paper's
throughput of one GPU. `hitopk` begins after backward, and selecting takes no time.

``ibatch``: Shaoqi Wang, Aidi Pi and Xiaobo Zhou, "Scalable Distributed DL Training: Batching Communication and
Computation", 2019. Figures 5 and 7 on up to 72 nodes, with the plans of the plugin's planner. The nodes are on eight
blades, which share a NIC of 10 Gbit/s each. As in the paper, pulls are cut into batches that follow one another, and all
gradients are pushed after backward. `both ways` cuts both, as this package does. One slowdown of the profiles' device for
all four networks is fitted to the paper's speedups of `whole` on 30 nodes.

``greedy``: each shipped profile in both directions. Transfers take 0.5, 1 and 2 times as long as computing, and a start-up
takes a hundredth or a thousandth of it.
"""

from __future__ import annotations

import itertools
import math
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from benchmarks.command import Note
from benchmarks.ibatch.table import IBATCH_NODES, IBATCH_PAPER
from benchmarks.scale.group_run import hierarchical_top_k
from lab.bench import Row

from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.cost import ALPHA, make_collective
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.jvm.planner import plan_buckets, predict_iteration_seconds
from sparkdl_comm.sim.network import HEADERS, ethernet_cost
from sparkdl_comm.sim.plan_run import round_up_count, simulate
from sparkdl_comm.sim.profile import PROFILES, Profile
from sparkdl_comm.sim.step_run import ITEMSIZE, ComputeTimings, step_seconds
from sparkdl_comm.topology import Topology

#: Algorithm, topology and formula in T_F, for 16 and for 1,024 servers.
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
FIG4: tuple[Operation, ...] = ("broadcast", "reduce", "all_reduce")
FIG4_RANKS = (2, 4, 8, 16, 32, 64)
FIG4_BYTES = 64 << 20
#: Network, its profile, seconds of a step on one GPU: 256 rows at the paper's samples/s of one GPU.
COMMLIB = (
    ("resnet50", "resnet50", 256 / 1150),
    ("resnet50-96", "resnet50", 256 / (113_280 / 0.201 / 128)),
    ("vgg19", "vgg19", 256 / 560),
)
COMMLIB_BUCKET, COMMLIB_DENSITY = 25 << 20, 0.001
#: Seconds per byte between two GPUs of a host: NVLink.
NVLINK = 1e-11
#: The iBatch paper's blades, the rate of their NICs in bit/s, its numbers of nodes, and seconds before a batch travels.
BLADES, RATE, NODES, BATCH_STARTUP = 8, 10e9, (2, 4, 8, 16, IBATCH_NODES, 72), 1e-3
#: Policies of the planner. `paper` is the better one of iBatch's two greedy plans.
WAYS = ("paper", "whole", "layerwise")
SLOWDOWNS = tuple(number / 4 for number in range(4, 25))
GREEDY = ("greedy1", "greedy2", "ibatch")


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    for figure in (_fig5, _fig4, _commlib, _ibatch, _greedy):
        yield from figure(options.quick)


def _row(case: str, algorithm: str, seconds: float, least: float, extra: dict[str, Any], **fields: Any) -> Row:
    return Row(
        suite="sim",
        case=case,
        algorithm=algorithm,
        samples=[seconds],
        theory_seconds=least,
        verified=seconds >= least,
        compute="emulated",
        extra=extra,
        **fields,
    )


def _on(topology: Topology) -> dict[str, Any]:
    """Return a row's fields of a topology."""
    return {"topology": topology.text, "rate_mbit": topology.rates[0] / 1e6, "world": topology.world}


def _fig5(quick: bool) -> Iterator[Row]:
    for network in ("lenet5", "vgg19"):
        parameters = Profile.load(network).parameters
        for name, text, formula in FIG5[: 2 if quick else None]:
            if (name, network) == ("lp", "vgg19"):
                continue
            topology = Topology.parse(text).with_rates("40gbit")
            count = round_up_count(topology, parameters)
            cost = replace(ethernet_cost(topology, ALPHA), gamma=0.0)
            begun = time.perf_counter()
            plan = make_plan(name, make_collective(name, "all_reduce", topology, count, ITEMSIZE, cost))
            found = simulate(plan, cost)
            spent = time.perf_counter() - begun
            link = ITEMSIZE * parameters * 8 / topology.rates[0]
            extra = {"formula": formula, "links": found.seconds / link, "simulated": found.simulated, "spent": spent}
            yield _row("fig5", name, found.seconds, formula * link, extra, bytes=ITEMSIZE * count, **_on(topology))


def _fig4(quick: bool) -> Iterator[Row]:
    for operation, name in itertools.product(FIG4, ("lp", "mst", "be")):
        for world in FIG4_RANKS[: 2 if quick else None]:
            topology = Topology.parse(f"star:{world}").with_rates("10gbit")
            cost = ethernet_cost(topology, ALPHA)
            collective = make_collective(name, operation, topology, FIG4_BYTES // ITEMSIZE, ITEMSIZE, cost)
            seconds = simulate(make_plan(name, collective), cost).seconds
            link = FIG4_BYTES * 8 / topology.rates[0]
            least = link * (2 * (world - 1) / world if operation == "all_reduce" else 1)
            yield _row(operation, name, seconds, least, {}, bytes=FIG4_BYTES, **_on(topology))


def _commlib(quick: bool) -> Iterator[Row]:
    topology = Topology.parse("hosts:2x2,25gbit" if quick else "hosts:16x8,25gbit")
    cost = ethernet_cost(topology, ALPHA, NVLINK)
    for network, name, alone in COMMLIB[: 1 if quick else None]:
        profile = Profile.load(name)
        computing = ComputeTimings.of(profile, alone / profile.seconds, COMMLIB_BUCKET)
        found = {way: step_seconds(way, topology, computing, cost) for way in ("tree", "torus2d")}
        found["hitopk"] = alone + hierarchical_top_k(topology, profile.parameters, COMMLIB_DENSITY, cost)
        for way, seconds in found.items():
            extra = {"network": network, "efficiency": 100 * alone / seconds}
            yield _row("commlib", way, seconds, alone, extra, bytes=ITEMSIZE * profile.parameters, **_on(topology))


@dataclass(frozen=True)
class Nodes:
    """``count`` nodes that train a network, on a device ``slowdown`` times slower than the profile's."""

    network: str
    count: int
    slowdown: float

    @property
    def sharing(self) -> int:
        """Nodes of a blade."""
        return math.ceil(self.count / BLADES)

    @cached_property
    def layers(self) -> tuple[list[float], list[float], list[float]]:
        """Seconds of each layer: forward, backward, and transfer one way."""
        layers = Profile.load(self.network).layers
        away = max(1, self.count - self.sharing) / self.count * self.sharing
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

    def communication(self, batches: int = 1) -> float:
        """Return the seconds in which all layers travel one way in so many batches."""
        return BATCH_STARTUP * batches + math.fsum(self.layers[2])

    def iteration(self, pulling: float) -> float:
        """Return the seconds of pulls beside forward, then backward, then all gradients."""
        return pulling + math.fsum(self.layers[1]) + self.communication()

    def request(self, compute: list[float], **more: object) -> dict[str, Any]:
        """Return a request to the planner."""
        return {"startup": BATCH_STARTUP, "transfer": self.layers[2], "compute": compute, **more}


def _ibatch(quick: bool) -> Iterator[Row]:
    """Predict iBatch's iterations. Yield a row of results for each network, number of nodes and batching."""
    networks, counts = (list(IBATCH_PAPER)[:1], (IBATCH_NODES,)) if quick else (list(IBATCH_PAPER), NODES)
    slowdown = _slowdown(networks)
    every = [Nodes(network, count, slowdown) for network in networks for count in counts]
    cases = list(itertools.product(every, WAYS))
    plans = plan_buckets(
        [nodes.request(nodes.layers[0], in_turn=True, policy=way, direction="pull") for nodes, way in cases]
    )
    for (nodes, way), plan in zip(cases, plans, strict=True):
        seconds = nodes.iteration(plan.predicted_seconds)
        communication = nodes.communication(len(plan.batches)) + nodes.communication()
        overlapping = max(0.0, nodes.computing + communication - seconds)
        split = {
            "overlapping": overlapping,
            "communication": communication - overlapping,
            "computation": nodes.computing - overlapping,
        }
        yield _ibatch_row(nodes, way, seconds, split=split)
    both = [dict(zip(("pull", "push"), map(nodes.request, nodes.layers[:2]), strict=True)) for nodes in every]
    for nodes, seconds in zip(every, predict_iteration_seconds(both), strict=True):
        yield _ibatch_row(nodes, "both ways", seconds)


def _slowdown(networks: Sequence[str]) -> float:
    """Return the slowdown with which `whole` is nearest to the paper's speedups, in the mean."""

    def error(slowdown: float) -> float:
        wrong = []
        for network in networks:
            nodes = Nodes(network, IBATCH_NODES, slowdown)
            pulling = nodes.communication() + math.fsum(nodes.layers[0])
            speedup = nodes.count * nodes.computing / nodes.iteration(pulling)
            wrong.append(abs(speedup / IBATCH_PAPER[network][1] - 1))
        return math.fsum(wrong)

    return min(SLOWDOWNS, key=error)


def _ibatch_row(nodes: Nodes, way: str, seconds: float, **extra: Any) -> Row:
    about = {"network": nodes.network, "nodes": nodes.count, "slowdown": nodes.slowdown}
    return _row(
        "ibatch",
        way,
        seconds,
        nodes.computing,
        {**about, "speedup": nodes.count * nodes.computing / seconds, **extra},
        topology=f"hosts:{min(BLADES, nodes.count)}x{nodes.sharing}",
        rate_mbit=RATE / 1e6,
        world=nodes.count,
        bytes=ITEMSIZE * Profile.load(nodes.network).parameters,
    )


def _greedy(quick: bool) -> Iterator[Row]:
    """Plan all cases of each profile by each policy. Yield a row of predicted seconds for each profile and policy."""
    for path in sorted(PROFILES.glob("*.json"))[: 1 if quick else None]:
        profile = Profile.read(path)
        cases = list(_cases(profile))
        seconds = {
            policy: [plan.predicted_seconds for plan in plan_buckets([{**case, "policy": policy} for case in cases])]
            for policy in (*GREEDY, "optimal")
        }
        least = seconds.pop("optimal")
        for policy, found in seconds.items():
            over = [one / best for one, best in zip(found, least, strict=True)]
            row = _row(
                "greedy",
                policy,
                math.fsum(found),
                math.fsum(least),
                {"network": path.stem, "over_optimum": over},
                topology="one link",
                rate_mbit=None,
                world=2,
                bytes=ITEMSIZE * profile.parameters,
            )
            yield replace(row, verified=min(over) >= 1 - 1e-9)


def _cases(profile: Profile) -> Iterator[dict[str, Any]]:
    for direction, ratio, startup in itertools.product(("pull", "push"), (0.5, 1.0, 2.0), (0.001, 0.01)):
        compute = [layer.forward if direction == "pull" else layer.backward for layer in profile.layers]
        computing = math.fsum(compute)
        transfer = [ratio * computing * layer.parameters / profile.parameters for layer in profile.layers]
        yield {"startup": startup * computing, "transfer": transfer, "compute": compute, "direction": direction}
