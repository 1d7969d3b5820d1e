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

``ibatch`` and ``greedy``: see ``batched.py``.

Parameters are not those of the lab, whose ranks share two cores: a message's start-up is ``--startup``, headers are those of
Ethernet.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import replace

from lab.arguments import names_of
from lab.bench import Row, versions
from simulating import batched
from simulating.group_run import hierarchical_top_k

from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.cost import ALPHA
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.collectives.select import make_collective
from sparkdl_comm.sim.collective import round_up_count, simulate
from sparkdl_comm.sim.network import ethernet_cost
from sparkdl_comm.sim.profile import Profile
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
PARTS = ("fig5", "fig4", "commlib", "ibatch", "greedy")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--scale", action="store_true", help="the papers' figures at their sizes")
    parser.add_argument("--figures", type=names_of(PARTS), default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--startup", type=float, default=ALPHA, help="seconds before each message")
    batched.add_arguments(parser)


def rows(options: Namespace) -> Iterator[Row]:
    made = {
        "fig5": _fig5,
        "fig4": _fig4,
        "commlib": _commlib,
        "ibatch": batched.scaling,
        "greedy": batched.greedy,
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
