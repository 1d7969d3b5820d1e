"""Regret of strategy `auto` against the best strategy that stays, on emulated networks.

    python python/benchmarks scale/auto --topology star:4 --profiles googlenet,vgg19 --ratios 0.5,2 --json

Fits run through Spark on the lab. Computing is emulated: the profile's network, with a share of each layer, so that forward
takes `--forward` seconds. At ratio R the links' capacity lets an all-reduce take R times as long as backward. Each network
and ratio has a fit by each strategy that stays, whose last ten steps count. It also has a fit with auto, and all steps of
that fit count, with trials and changes of the strategy. A fit by `ps+ibatch` is longer than the others. Its last ten
steps come after the trial of its plan, with the batches that it kept. A fit is one epoch, and a step lies between the
ends of two steps.

Theory of auto's step is the median step of the best strategy that stays. `regret` is auto's additional time for all of its
steps, as a share. With `--drop`, the links change from the first ratio to the last in the middle of another fit with auto.
The regret then is against the best strategy that stays throughout. `switched`: steps from the change until auto had
decided again. Verified: one process finds the same final weights.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pandas as pd
import torch
from benchmarks import batching, workload
from benchmarks.applications import answer, set_rate, submit
from benchmarks.case import passes, share_of
from benchmarks.command import Note
from benchmarks.workload import LEARNING_RATE, fits, loss, network, right
from lab import Lab
from lab.arguments import names_of, numbers, topology_of
from lab.bench import Row, allreduce_seconds
from lab.settings import applied
from lab.spark import SparkCluster
from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm import Callback, TorchEstimator
from sparkdl_comm.errors import LabError
from sparkdl_comm.ml.model import TorchModel
from sparkdl_comm.sim.profile import Profile, shipped

#: Steps that count, the last ones of a fit, unless it is auto's. Before them JVMs compile, and ranks connect.
TIMED = 10
#: Strategy whose first steps measure, plan and try the plan.
PLANNED = "ps+ibatch"
#: A strategy of each family of auto's candidates, and further collectives.
WAYS = (
    *("ring", "ring+decoupled", "bml+decoupled", "torus2d+decoupled"),
    *("ps+whole", "ps+layerwise", PLANNED),
)
#: Steps of a fit with auto, by PLANNED, and of others. A plan and all its trials take at most 53 steps.
STEPS, PLANNED_STEPS, FIXED_STEPS = 300, 70, 20
#: MiB of an executor; seconds for the fits of a network at a ratio.
MEMORY, TIMEOUT = 512, 450.0


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    topology, hosts = options.topology, len(options.topology.hosts)
    with (
        tempfile.TemporaryDirectory(prefix="sparkdl-auto-") as folder,
        Lab(topology.with_rates(1_000_000_000)) as lab,
        lab.spark(memory=f"{MEMORY}m") as spark,
    ):
        for name in options.profiles:
            profile = share_of(name, options.forward, options.slowdown)
            files = Path(folder, name)
            slow = allreduce_seconds(hosts, 4 * profile.parameters, 1.0) / topology.rails / passes(profile)[1]
            rates = [round(slow / ratio * 1e6) for ratio in options.ratios]
            stay: list[dict[str, float]] = []
            for ratio, rate in zip(options.ratios, rates, strict=True):
                set_rate(lab, rate)
                found = _fits(spark, options, files, [*options.ways, AUTO])
                stay.append({each["way"]: median(each["seconds"][-TIMED:]) for each in found if each["way"] != AUTO})
                for each in found:
                    about = {"exchange": ratio, "ways": stay[-1]}
                    yield _row(options, name, profile, rate, each, about, min(stay[-1].values()))
            if options.drop:
                change = options.steps // 2
                set_rate(lab, rates[0])
                with _once(files.with_suffix(".signal"), lambda rate=rates[-1]: set_rate(lab, rate)):
                    (each,) = _fits(spark, options, files, [AUTO], change)
                best = min((stay[0][way] + stay[-1][way]) / 2 for way in stay[0])  # half of the steps at each rate
                about = {"exchange": options.ratios[0], "changed": change}
                about["switched"] = _switched(each["auto"]["decisions"], change)
                yield _row(options, f"{name} drop", profile, rates[0], each, about, best)


def _switched(decisions: list[dict[str, Any]], change: int) -> int | None:
    """Return the steps from the change to the end of the first decision after it, or None."""
    return next((one["since"] - change for one in decisions if one["since"] and one["step"] > change), None)


def _fits(
    spark: SparkCluster, options: Namespace, files: Path, ways: list[str], change: int = 0
) -> list[dict[str, Any]]:
    """Return the results of fits. ``files``: beginning of the names of their files, the network's name."""
    topology = options.topology
    conf = {"topology": topology.text, "rails": ",".join(f"rail{rail}" for rail in range(topology.rails))}
    signal, times = (str(files.with_suffix(end)) for end in (".signal", ".times"))
    network = files.name, options.forward, options.slowdown
    counts = options.fixed_steps, PLANNED_STEPS, options.steps, change
    job = AutoJob(*network, conf, ways, topology.world, *counts, signal, times)
    return submit(spark, Path(__file__), job, TIMEOUT)


@contextlib.contextmanager
def _once(signal: Path, act: Any) -> Iterator[None]:
    """Call ``act`` when the file exists."""
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
    seconds = result["seconds"] if is_auto else result["seconds"][-TIMED:]
    extra: dict[str, Any] = {**about, "computing": profile.seconds}
    if result["way"] == PLANNED:
        extra |= _kept(result["batching"])
    if is_auto:
        extra |= {"regret": fmean(seconds) / best - 1, "decisions": result["auto"]["decisions"]}
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
        extra=extra,
    )


def _kept(plans: dict[str, Any]) -> dict[str, Any]:
    """Return a row's fields about the batches that a fit kept.

    :param plans: entry ``batching`` of the fit's summary.
    :raises LabError: no plan was made, or it was on trial when the fit ended.
    """
    found = batching.record(plans)
    outcomes = found["outcome"].values()
    if unsettled := [text for text in outcomes if text.startswith(("not planned", "used: on trial"))]:
        raise LabError(
            f"{PLANNED}, {PLANNED_STEPS} steps: {unsettled[0]}. Raise PLANNED_STEPS in {Path(__file__).name}."
        )
    return found


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
    parser.add_argument("--forward", type=float, default=0.05, help="seconds")
    parser.add_argument("--slowdown", type=float, default=60.0, help="of the device that computes")
    options = parser.parse_args(words)
    options.ways, options.steps, options.fixed_steps = WAYS, STEPS, FIXED_STEPS
    if options.quick:
        options.profiles, options.steps, options.fixed_steps, options.ways = ["vgg19"], 40, 12, ("ring", "ps+layerwise")
        options.ratios = options.ratios[:2]
    options.ways = [way for way in options.ways if fits(way, options.topology)]
    return options


# --- The application --------------------------------------------------------------------------------------------------

AUTO = "auto"


@dataclass(frozen=True)
class AutoJob:
    """Fits by the strategies in ``ways``, named like auto's candidates.

    - ``network``: name of the profile. ``forward``, ``slowdown``: of the emulated network, as in case.py.
    - ``conf``: settings of spark.sparkdl.comm.
    - ``fixed_steps``: steps of a fit. ``planned_steps``: steps of a fit by PLANNED. ``steps``: steps of a fit with auto.
      After step ``change`` (0: none) of a fit with auto the file ``signal`` is created.
    - ``times``: file for the times at which steps end.
    """

    network: str
    forward: float
    slowdown: float
    conf: dict[str, str]
    ways: list[str]
    ranks: int
    fixed_steps: int
    planned_steps: int
    steps: int
    change: int
    signal: str
    times: str


class Marks(Callback):
    """Callback that records when training began and each step ended, and creates a file after one of the steps.

    All steps are in one epoch. At its end the module has to be complete, so nothing would overlap the next step.
    """

    def __init__(self, times: str, step: int, signal: str) -> None:
        self._times, self._step, self._signal = times, step, signal

    def on_train_begin(self, state: Any) -> None:
        self._ends = [time.monotonic()]

    def on_step_end(self, state: Any) -> None:
        self._ends.append(time.monotonic())
        if state.rank == 0 and state.step == self._step:
            Path(self._signal).touch()

    def on_train_end(self, state: Any) -> None:
        if state.rank == 0:
            Path(self._times).write_text(json.dumps(self._ends))


def results(spark: SparkSession, job: AutoJob) -> Iterator[dict[str, Any]]:
    profile, datas = share_of(job.network, job.forward, job.slowdown), {}
    for way in job.ways:
        steps = {AUTO: job.steps, PLANNED: job.planned_steps}.get(way, job.fixed_steps)
        data = datas.setdefault(steps, _data(spark, job.ranks * steps).cache())
        estimator = TorchEstimator(
            model=functools.partial(network, profile),
            loss=loss,
            optimizer=functools.partial(torch.optim.SGD, lr=LEARNING_RATE),
            batchSize=job.ranks,
            maxIter=1,
            num_workers=job.ranks,
            callbacks=[Marks(job.times, job.change if way == AUTO else 0, job.signal)],
        )
        with applied(spark, {**job.conf, "strategy": way}):
            model = estimator.fit(data)
        yield {"way": way, **_result(model, profile, job)}


def _data(spark: SparkSession, count: int) -> DataFrame:
    """Return rows with equal means, which alone an emulated network sees, so that all steps are the same.

    The rows differ, as their contents decide which rank gets them.
    """
    (inputs,), targets = workload.rows(1)
    random = np.random.default_rng(1)
    alike = pd.DataFrame({"features": [random.permutation(inputs) for _ in range(count)], "label": targets[0]})
    return spark.createDataFrame(alike, "features array<float>, label float")


def _result(model: TorchModel, profile: Profile, job: AutoJob) -> dict[str, Any]:
    summary = model.summary
    assert summary is not None
    ends = json.loads(Path(job.times).read_text())
    return {
        "seconds": [later - sooner for sooner, later in itertools.pairwise(ends)],
        "bytes": sum(summary["bytes"].values()) / summary["iterations"],
        "auto": summary.get("auto"),
        "batching": summary.get("batching"),
        "verified": right(model.module, profile, 1, summary["iterations"]),
    }


if __name__ == "__main__":
    answer("bench_auto", AutoJob, results)
