"""Predictions of `sparkdl-comm predict` beside measurements, at other rates, on other topologies, with other strategies.

The timeline of one fit, by the parameter server with iBatch's batches in the first place, is all that predictions know.
Then the network is trained in every place by every strategy, in Spark with emulated computing (see ibatch/network.py). A
place's links are so fast that on the first topology a pull takes `ratio` times as long as forward. In other places
`ibatch` makes other batches than the timeline's, which predictions use.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.applications import submit
from benchmarks.case import case_of, share_of
from benchmarks.ibatch.network import BUCKET, JOB, Job, conf_of
from lab import Lab
from lab.bench import Row

from sparkdl_comm.conf.strategy import SERVER
from sparkdl_comm.report.timeline import read_trace
from sparkdl_comm.sim.forecast import Setting, forecast
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.sim.server_run import SIMPLE_BATCHINGS
from sparkdl_comm.sim.traced_timings import TracedTimings, timings_from_spans
from sparkdl_comm.topology import Topology
from sparkdl_comm.units import parse_size

#: Seconds of forward.
FORWARD = 0.25
#: Configuration of the fit whose timeline is used.
SOURCE = "ibatch"
#: Configuration of the parameter server -> predicted batches.
BATCHINGS = {SOURCE: "traced", **{way: way for way in SIMPLE_BATCHINGS}}


@dataclass(frozen=True)
class Place:
    """A topology, its links' rates by ``ratio``, and the strategies that are tried on it."""

    topology: str
    ratio: float
    ways: tuple[str, ...]


#: The timeline is from the first place.
PLACES = (
    Place("star:4", 1.0, (SOURCE, "whole", "ring", "lp")),
    Place("star:4", 2.0, (SOURCE, "whole", "ring", "p2p-ps")),
    Place("star:6", 1.5, (SOURCE, "ring", "tree")),
    Place("bcube:2,2", 2.0, ("bml", "ring", "p2p-ps")),
)


def rows(options: Namespace, note: Callable[[str], None]) -> Iterator[Row]:
    """Measure and predict each strategy in each place. Yield a row of results for each.

    Note the errors of the predictions, and how many pairs of strategies they put in the right order.
    """
    profile = share_of(options.network, FORWARD)
    places = list(PLACES)
    if options.quick:
        places = [replace(place, ways=place.ways[:2]) for place in (PLACES[0], PLACES[-1])]
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="sparkdl-predict-") as folder:
        timeline = Path(folder, "timeline.json")
        for place in places:
            topology = _topology(place, options.network)
            where = str(timeline) if place is places[0] else None
            results = _measured(place, topology, options.network, where, options.repeats)
            computed = timings_from_spans(*read_trace(timeline))
            for result in results:
                found.append(_row(result, computed, topology, profile, options, place is places[0]))
                yield found[-1]
    errors = [abs(row.extra["error"]) for row in found if not row.extra["source"]]
    right, pairs = ordered(found)
    note(f"{len(errors)} predictions, error median {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    note(f"{right} of {pairs} pairs of strategies in the right order")


def ordered(found: Sequence[Row]) -> tuple[int, int]:
    """Return the number of pairs of strategies in the right order, and of all pairs in one place with distinct samples."""
    places: dict[tuple[str, str, float | None], list[Row]] = defaultdict(list)
    for row in found:
        places[row.case, row.topology, row.rate_mbit].append(row)
    right = pairs = 0
    for beside in places.values():
        for one, other in itertools.combinations(sorted(beside, key=lambda row: row.seconds), 2):
            if max(one.samples) < min(other.samples):
                pairs += 1
                right += one.extra["predicted"] < other.extra["predicted"]
    return right, pairs


def _topology(place: Place, network: str) -> Topology:
    first = Topology.parse(PLACES[0].topology)
    rate = case_of(network, FORWARD, first.world, f"auto:{place.ratio}").rate
    return Topology.parse(place.topology).with_rates(round(rate))


def _measured(
    place: Place, topology: Topology, network: str, timeline: str | None, repeats: int
) -> list[dict[str, Any]]:
    job = Job(
        network,
        forward=FORWARD,
        ways=list(place.ways),
        ranks=topology.world,
        rows=2,
        steps=2,
        epochs=repeats,
        warmup=1 if BATCHINGS.keys() & set(place.ways) else 0,
        timeline=timeline,
    )
    with Lab(topology) as lab, lab.spark(memory="512m") as spark:
        nics = [lab.layout.node(0).interface(rail) for rail in range(topology.rails)]
        return submit(spark, JOB, job, 600.0, conf_of(nics))


def _row(
    result: dict[str, Any],
    computed: TracedTimings,
    topology: Topology,
    profile: Profile,
    options: Namespace,
    at_home: bool,
) -> Row:
    way = result["way"]
    strategy = SERVER if way in BATCHINGS else way
    setting = Setting(topology, strategy, BATCHINGS.get(way, "traced"), bucket=parse_size(BUCKET))
    seconds, measured = forecast(computed, setting).seconds, statistics.median(result["samples"])
    return Row(
        suite="predict",
        case=options.network,
        algorithm=way,
        topology=Topology.parse(topology.text).text,
        rate_mbit=topology.rates[0] / 1e6,
        world=topology.world,
        bytes=4 * profile.parameters,
        samples=result["samples"],
        verified=result["verified"],
        compute="emulated",
        extra={
            "predicted": seconds,
            "error": seconds / measured - 1,
            "source": at_home and way == SOURCE,
            "computing": computed.passes,
        },
    )
