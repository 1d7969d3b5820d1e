"""Emulated networks: the time to set them up, and the rates of their links.

    python python/benchmarks lab --json

Case `set-up`: seconds until a lab's hosts, switches and links exist. Verified: nothing is left afterwards.

Case `links`: every link is busy in both directions at once (see lab.check). Each link has a sample: the seconds that it
needs for the bytes that a link of nominal rate moves in SECONDS, the theory value. `slowest` and `fastest` are
rates as shares of the nominal rate. Verified: no link is off by more than 8 %.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterator

from benchmarks.command import Note
from lab import Lab, state
from lab.bench import Row, measure
from lab.check import check

from sparkdl_comm.topology import Topology

TOPOLOGIES = ("star:9", "bcube:3,2", "hosts:4x2", "fattree:4,oversub=2")
#: Mbit/s of each link, each way, and seconds to measure links.
RATES, SECONDS = (100.0, 200.0, 500.0), 2.0


def set_up(topology: Topology) -> tuple[float, bool]:
    """Return the seconds to make a lab, and whether it was complete and then removed."""
    lab = Lab(topology)
    begun = time.perf_counter()
    with lab:
        taken = time.perf_counter() - begun
        access, namespaces = lab.access, set(lab.layout.namespaces)
        complete = namespaces <= set(access.run("ip", "netns", "list").split())
    left = {known.name for known in state.every()}
    if access.holder is None:  # otherwise they ended with the lab's user namespace
        left |= set(access.run("ip", "netns", "list").split())
    return taken, complete and not left & {lab.name, *namespaces}


def _rows(topology: Topology, seconds: float, warmup: int, repeats: int) -> Iterator[Row]:
    """Measure both cases of a topology, whose rails have the same rate, and yield their rows of results."""
    rate = topology.rates[0]
    made = measure({"set-up": lambda: set_up(topology)}, warmup=warmup, repeats=repeats)["set-up"]
    yield Row(
        suite="lab",
        case="set-up",
        algorithm="namespaces",
        topology=topology.text,
        rate_mbit=rate / 1e6,
        world=topology.world,
        bytes=0,
        samples=[taken for taken, _ in made],
        verified=all(gone for _, gone in made),
    )
    with Lab(topology) as lab:
        links = check(lab, seconds)
    ratios = [link.ratio for link in links]
    yield Row(
        suite="lab",
        case="links",
        algorithm="check",
        topology=topology.text,
        rate_mbit=rate / 1e6,
        world=topology.world,
        bytes=round(rate * seconds / 8),
        samples=[seconds / max(ratio, sys.float_info.min) for ratio in ratios],
        theory_seconds=seconds,
        verified=all(link.within() for link in links),
        extra={"links": len(links), "slowest": min(ratios), "fastest": max(ratios)},
    )


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    topologies, rates, seconds = (("star:3",), (100.0,), 0.5) if options.quick else (TOPOLOGIES, RATES, SECONDS)
    for text in topologies:
        for rate in rates:
            topology = Topology.parse(text).with_rates(round(rate * 1e6))
            yield from _rows(topology, seconds, options.warmup, options.repeats)
