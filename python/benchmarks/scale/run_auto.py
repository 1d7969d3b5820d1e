"""What strategy auto loses against the best strategy that stays, on emulated networks.

    python python/benchmarks scale/auto --topology star:4 --profiles googlenet,vgg19 --ratios 0.5,2 --json

Fits run through Spark on the lab, as the parameter server needs the plugin; computing is emulated: the profile's network, of
each layer a share, so that forward takes `--forward` seconds. At ratio R links are so fast that an all-reduce takes by what
they allow R times as long as backward. For each network and ratio there are fits with each strategy that stays, of
`--fixed-steps` steps, the first ten of which do not count, and one with auto, of `--steps`, all of which count: its first
ones, trials, and whatever one strategy takes to follow another. A fit is one epoch, and a step lies between the ends of two.

Small models, of which computing takes no longer than the way of the parameter server through the JVMs, are
`--slowdown 1 --forward 0.00063`.

Theory of auto's step is the median of the best one that stays. `regret` is by how much more auto took for all of its steps.
With `--drop`, links become as slow as at the last ratio in the middle of another fit with auto at the first one: the regret
is against the best of those that stay for all of it; `switched` is how many steps after the change auto had decided again.
Verified: weights are at last those that one process finds.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.applications import set_rate, submit
from benchmarks.case import share_of
from benchmarks.command import Note
from benchmarks.scale.auto_job import AUTO, AutoJob
from benchmarks.workload import check, fits
from lab import Lab
from lab.arguments import names_of, numbers, positive, topology_of
from lab.bench import Row, allreduce_seconds, versions
from lab.spark import SparkCluster

from sparkdl_comm.errors import ConfError
from sparkdl_comm.sim.profile import Profile, shipped

#: Steps of a fit that stays which do not count: JVMs compile, and ranks connect.
SETTLING = 10
#: One of each family of auto's candidates, and the collectives that share the work in other ways.
WAYS = "ring,ring+decoupled,bml+decoupled,torus2d+decoupled,ps+whole,ps+layerwise,ps+ibatch"


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    topology, hosts = options.topology, len(options.topology.hosts)
    with (
        tempfile.TemporaryDirectory(prefix="sparkdl-auto-") as folder,
        Lab(topology.with_rates(1_000_000_000)) as lab,
        lab.spark(memory=f"{options.memory}m") as spark,
    ):
        for name in options.profiles:
            profile = share_of(name, options.forward, options.slowdown)
            path = Path(folder, f"{name}.json")
            path.write_text(profile.to_json())
            backward = math.fsum(layer.backward for layer in profile.layers)
            slow = allreduce_seconds(hosts, 4 * profile.parameters, 1.0) / topology.rails / backward
            rates = [round(slow / ratio * 1e6) for ratio in options.ratios]
            stay: list[dict[str, float]] = []
            for ratio, rate in zip(options.ratios, rates, strict=True):
                set_rate(lab, rate)
                found = _fits(spark, options, path, [*options.ways, AUTO])
                stay.append({each["way"]: median(each["seconds"][SETTLING:]) for each in found if each["way"] != AUTO})
                for each in found:
                    about = {"exchange": ratio, "ways": stay[-1]}
                    yield _row(options, name, profile, rate, each, about, min(stay[-1].values()))
            if options.drop:
                change, signal = options.steps // 2, Path(folder, f"{name}.signal")
                set_rate(lab, rates[0])
                with _once(signal, lambda rate=rates[-1]: set_rate(lab, rate)):
                    (each,) = _fits(spark, options, path, [AUTO], change, signal)
                best = min((stay[0][way] + stay[-1][way]) / 2 for way in stay[0])  # half of the steps at each rate
                about = {"exchange": options.ratios[0], "then": options.ratios[-1], "changed": change}
                about["switched"] = _switched(each["auto"]["decisions"], change)
                yield _row(options, f"{name} drop", profile, rates[0], each, about, best)


def _switched(decisions: list[dict[str, Any]], change: int) -> int | None:
    """Steps from the change to the end of the first decision after it; None: there was none."""
    return next((one["since"] - change for one in decisions if one["since"] and one["step"] > change), None)


def _fits(
    spark: SparkCluster, options: Namespace, profile: Path, ways: list[str], change: int = 0, signal: Path | None = None
) -> list[dict[str, Any]]:
    topology = options.topology
    conf = {"topology": topology.text, "rails": ",".join(f"rail{rail}" for rail in range(topology.rails))}
    times = str(profile.with_suffix(".times"))
    job = AutoJob(
        str(profile), conf, ways, topology.world, options.fixed_steps, options.steps, change, str(signal), times
    )
    return submit(spark, Path(__file__).with_name("auto_job.py"), job, options.timeout)


@contextlib.contextmanager
def _once(signal: Path, act: Any) -> Iterator[None]:
    """Acts when the file is there."""
    over = threading.Event()

    def wait() -> None:
        while not signal.exists():
            if over.wait(0.005):
                return
        act()

    thread = threading.Thread(target=wait, name="bench-auto", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _row(
    options: Namespace,
    case: str,
    profile: Profile,
    rate: int,
    result: dict[str, Any],
    about: dict[str, Any],
    best: float,
) -> Row:
    is_auto = result["way"] == AUTO
    seconds = result["seconds"] if is_auto else result["seconds"][SETTLING:]
    extra: dict[str, Any] = {**about, "computing": profile.seconds, "steps": len(result["seconds"])}
    if is_auto:
        decisions = result["auto"]["decisions"]
        extra |= {
            "regret": fmean(seconds) / best - 1,
            "chosen": result["auto"]["chosen"],
            "decisions": decisions,
            "server": result["auto"]["server"],
            "steps_of": {"first": fmean(seconds[:30]), "last": fmean(seconds[-30:])},
        }
    else:
        del extra["ways"]
    return Row(
        suite="auto",
        case=case,
        algorithm=result["way"],
        topology=options.topology.text,
        rate_mbit=rate / 1e6,
        world=options.topology.world,
        bytes=round(result["bytes"]),
        samples=[fmean(seconds) if is_auto else median(seconds)],
        theory_seconds=best,
        verified=result["verified"],
        compute="emulated",
        versions=versions("torch", "pyspark", "sparkdl_comm"),
        extra=extra,
    )


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument("--topology", type=topology_of, default="star:4", help="of hosts of the lab")
    parser.add_argument(
        "--profiles",
        type=names_of(shipped()),
        default="googlenet,inception_v3,vgg19",
        help=f"of {', '.join(shipped())}",
    )
    parser.add_argument("--ratios", type=numbers, default="0.5,2", help="of an all-reduce, by the links, to backward")
    parser.add_argument("--drop", action="store_true", help="links change from the first ratio to the last in mid-run")
    parser.add_argument("--ways", default=WAYS, help="strategies that stay; those that do not fit are left out")
    parser.add_argument("--steps", type=positive, default=300, help="of a fit with auto")
    parser.add_argument("--fixed-steps", type=positive, default=20, help="of a fit with a strategy that stays")
    parser.add_argument("--forward", type=float, default=0.05, help="seconds")
    parser.add_argument("--slowdown", type=float, default=60.0, help="of the device that computes")
    parser.add_argument("--memory", type=positive, default=512, help="MiB of each executor")
    parser.add_argument("--timeout", type=float, default=450.0, help="seconds for the fits of a network at a ratio")
    options = parser.parse_args(words)
    if options.quick:
        options.profiles, options.steps, options.fixed_steps, options.ways = ["vgg19"], 40, 12, "ring,ps+layerwise"
        options.ratios = options.ratios[:2]
    if options.fixed_steps <= SETTLING:
        parser.error(f"--fixed-steps {options.fixed_steps}: more than the {SETTLING} that do not count")
    options.ways = options.ways.split(",")
    for way in options.ways:
        try:
            check({"strategy": way}, options.topology.world)
        except ConfError as error:
            parser.error(f"--ways {way}: {error}")
    options.ways = [way for way in options.ways if fits(way, options.topology)]
    return options
