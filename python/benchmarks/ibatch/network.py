"""The parameter server with layers in batches, on an emulated network. Computing is emulated, or real. Collectives use all
rails, everything else the first one.

Theory of an iteration, for any batches: links carry each parameter and each gradient once, (N-1)/N of the bytes each way.
No pull of a step ends after its first push begins. Computing is the profile's, and unknown for networks that really
compute. So an iteration takes at least

    max(computing + 2 (T_s + T_t[1]), communication + 2 T_s + C_f[L] + C_b[L])

T_s: start-up that the lab adds. T_t[1]: transfer of the first layer, which is pulled before all computing and pushed after
it. C_f[L], C_b[L]: forward and backward of the last layer, between the last pull and the first push.
"""

from __future__ import annotations

import functools
import hashlib
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from benchmarks import batching, breakdown
from benchmarks.applications import answer, bench_jar, set_rate, submit
from benchmarks.case import Case, case_of, number, share_of
from benchmarks.command import Note
from benchmarks.workload import trained_by_ddp
from lab import Lab
from lab.bench import Row
from lab.emulated import EmulatedNetwork
from lab.settings import applied
from lab.spark import SparkCluster
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import DataFrame, SparkSession
from torch import nn

import sparkdl_comm
from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.errors import ConfError
from sparkdl_comm.jvm.planner import predict_iteration_seconds
from sparkdl_comm.networks import LeNet5
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.topology import Topology

#: Application that trains in all configurations.
JOB = Path(__file__)
#: Steps of an epoch. A quick run needs as many: an iteration is measured before the plan, and then the plan is tried.
STEPS = 4


def cases(options: Namespace) -> list[Case]:
    """Return a case for each network, pull-to-forward ratio and delay. Set the configurations, if none are given.

    :param options: of the benchmark `ps`.
    :raises ConfError: an option that makes no sense.
    """
    models = options.model.split(",")
    options.batching = options.batching or (list(WAYS) if any(name in REAL for name in models) else [*WAYS, DDP])
    found = [
        case_of(
            name,
            None if name in REAL else options.forward,
            options.topology.world,
            rate,
            number("--delay", delay) / 1e3,
        )
        for name in models
        for rate in options.rate.split(",")
        for delay in options.delay.split(",")
    ]
    if DDP in options.batching and any(case.profile is None for case in found):
        raise ConfError(f"--batching {DDP}: only networks whose computing is emulated")
    return found


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    """Train each case in all configurations. Yield a row of results for each case and configuration.

    :raises LabError: an application failed.
    """
    topology = options.topology
    with (
        Lab(topology.with_rates(round(options.cases[0].rate))) as lab,
        lab.spark(memory="512m") as spark,
    ):
        for case in options.cases:
            set_rate(lab, case.rate)
            about = ", ".join(f"{name} {value:.3g}" for name, value in case.about.items())
            note(f"{case.name} at {case.rate / 1e6:.1f} Mbit/s, {case.delay:g} s added to a start-up: {about}")
            counts = options.rows, STEPS, options.repeats, options.warmup
            job = Job(case.name, options.forward, options.batching, case.world, *counts)
            nics = [lab.layout.node(0).interface(rail) for rail in range(topology.rails)]
            found = _submit(spark, job, case, options.timeout, nics)
            yield from _rows(case, found, topology)


def conf_of(nics: list[str]) -> dict[str, str]:
    """Return Spark settings that let collectives use all of a host's NICs, and gloo the first one."""
    conf = {"spark.executorEnv.GLOO_SOCKET_IFNAME": nics[0]}
    if len(nics) > 1:
        conf["spark.sparkdl.comm.rails"] = ",".join(nics)
    return conf


def _submit(spark: SparkCluster, job: Job, case: Case, timeout: float, nics: list[str]) -> list[dict[str, Any]]:
    conf = conf_of(nics)
    if case.delay:
        conf["spark.jars"] = f"{sparkdl_comm.spark_conf()['spark.jars']},{bench_jar()}"
        conf["spark.executor.extraJavaOptions"] = f"-Dlab.sparkdl.startupSeconds={case.delay}"
    return submit(spark, JOB, job, timeout, conf)


def _rows(case: Case, found: list[dict[str, Any]], topology: Topology) -> Iterator[Row]:
    predicted = {}
    for kind in (False, True):  # whose transfers of gradients differ
        predicted |= _predicted([result for result in found if result.get("sparse") is kind])
    ends: dict[bool, set[str]] = defaultdict(set)
    for result in found:
        if result.get("batching"):
            ends[result["sparse"]].add(result["weights"])
    for result in found:
        way, plans = result["way"], result.get("batching", {})
        extra: dict[str, Any] = {
            "delay": case.delay,
            **case.about,
            **batching.record(plans),
            "predicted_seconds": predicted.get(way),
            "phases": result.get("phases", {}),
            "overlapped": result.get("overlapped"),
            "plans": {name: plan["batches"] for name, plan in plans.items() if "profile" in plan},
            "startup_seconds": {name: plan["profile"]["startup"] for name, plan in plans.items() if "profile" in plan},
        }
        yield Row(
            suite="ps",
            case=case.name,
            algorithm=way,
            topology=topology.text,
            rate_mbit=case.rate / 1e6,
            world=case.world,
            bytes=round(result["bytes"]),
            samples=result["samples"],
            theory_seconds=case.about.get("bound_seconds"),
            verified=result["verified"] and (not plans or len(ends[result["sparse"]]) == 1),
            compute="emulated" if case.profile is not None else "real",
            extra=extra,
        )


def _predicted(found: list[dict[str, Any]]) -> dict[str, float]:
    """Return the predicted seconds of an iteration by configuration, with the batches in use.

    Batches that were cut without a profile are judged by the profile of another configuration, if possible one with several
    batches in flight. Without any profile there are no predictions.
    """
    plans = {result["way"]: result["batching"] for result in found if result.get("batching")}
    complete = [each for each in plans.values() if all("profile" in plan for plan in each.values())]
    if not complete:
        return {}
    measured = max(complete, key=lambda each: sum("gap" in plan["profile"] for plan in each.values()))
    known = {
        name: {field: value for field, value in plan["profile"].items() if field != "in_turn"}
        for name, plan in measured.items()
    }
    requests = [
        {name: {**known[name], **plan.get("profile", {}), "batches": plan["batches"]} for name, plan in each.items()}
        for each in plans.values()
    ]
    return dict(zip(plans, predict_iteration_seconds(requests), strict=True))


# --- The application ----------------------------------------------------------------------------------------------------

#: Minimum size of a bucket of all-reduced gradients.
BUCKET = "256KiB"


def _ps(pull: str, push: str) -> dict[str, str]:
    return {"strategy": "ps", "ps.batching": pull, "ps.pushBatching": push}


def _all_reduce(name: str) -> dict[str, str]:
    return {"strategy": name, "collective.bucket": BUCKET}


#: Configuration -> its settings of spark.sparkdl.comm. The paper batches pulls only, and requests one batch at a time.
#: All-reduces overlap backward.
WAYS: dict[str, dict[str, str]] = {
    "whole": _ps("whole", "whole"),
    "layerwise": _ps("layerwise", "layerwise"),
    "paper": _ps("paper", "whole"),
    "paper-layerwise": _ps("paper-layerwise", "whole"),
    "ibatch": _ps("ibatch", "ibatch"),
    "ring": _all_reduce("ring"),
    "bml": _all_reduce("bml"),
}
#: All-reduces of other benchmarks.
OTHER_WAYS = {name: _all_reduce(name) for name in ("p2p-ps", "lp", "tree")}
#: Configurations that push a hundredth of the gradients.
SPARSE_WAYS = {f"{name}-sparse": WAYS[name] | {"compression": "exact:0.01"} for name in ("whole", "ibatch")}
_SETTINGS = WAYS | OTHER_WAYS | SPARSE_WAYS
#: Configuration with torch's DistributedDataParallel over gloo, under TorchDistributor.
DDP = "ddp"
#: Epochs in which a fit measures, plans and tries its plan. Timed epochs of equal length follow.
_WARM_UP_EPOCHS = 6
_INPUTS = 784


class SmallVgg(nn.Sequential):
    """Network whose first layers compute much and whose last layers are large, like VGG.

    Input [rows, 784] (28 x 28, flat), output [rows, 10].
    """

    def __init__(self) -> None:
        layers: list[nn.Module] = [nn.Unflatten(1, (1, 28, 28))]
        for inputs, outputs in ((1, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(576, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
        super().__init__(*layers)


#: Networks that really compute.
REAL: dict[str, Callable[[], nn.Module]] = {"real:lenet5": LeNet5, "real:vgg": SmallVgg}


@dataclass(frozen=True)
class Job:
    """Fits of a network in several configurations.

    :param network: key of REAL, or name of an emulated network's profile.
    :param forward: seconds of forward of an emulated network.
    :param ways: names of configurations: keys of WAYS, OTHER_WAYS or SPARSE_WAYS, or DDP.
    :param rows: rows of a rank in a step.
    :param steps: steps of an epoch.
    :param epochs: timed epochs.
    :param warmup: fits before all others, so that JVMs compile.
    :param timeline: file for the timeline of the first configuration.
    """

    network: str
    forward: float
    ways: list[str]
    ranks: int
    rows: int
    steps: int
    epochs: int
    warmup: int
    timeline: str | None = None

    def profile_iterations(self) -> int:
        """Return the iterations of the profile, so that the choice is in use before the first timed epoch.

        The profile is followed by trials, at most as long: of the plan, of up to three plainer batchings, and of a second
        plan. Pulls change one step later, and pushes two.
        """
        return (_WARM_UP_EPOCHS * self.steps - 3) // 6

    def make_network(self) -> Callable[[], nn.Module]:
        if self.network in REAL:
            return REAL[self.network]
        return functools.partial(EmulatedNetwork, share_of(self.network, self.forward))


def train(spark: SparkSession, data: DataFrame, job: Job, way: str) -> TorchModel:
    settings = {
        **_SETTINGS[way],
        "ps.profileIterations": job.profile_iterations(),
        "timeline": job.epochs * job.steps,
    }
    with applied(spark, settings):
        return TorchEstimator(
            model=job.make_network(),
            loss="CrossEntropyLoss",
            optimizer=functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
            batchSize=job.ranks * job.rows,
            maxIter=_WARM_UP_EPOCHS + job.epochs,
            num_workers=job.ranks,
        ).fit(data)


def train_with_ddp(job: Job) -> dict[str, Any]:
    """Train one rank under TorchDistributor. The driver gets rank 0's result."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    profile = share_of(job.network, job.forward)
    samples, verified = trained_by_ddp(
        EmulatedNetwork(profile, outputs=1),
        profile,
        job.rows,
        steps=job.steps,
        warmup=_WARM_UP_EPOCHS,
        repeats=job.epochs,
        bucket_mb=25 * profile.parameters / Profile.load(job.network).parameters,
    )
    dist.destroy_process_group()
    return {"samples": samples, "verified": verified, "bytes": 2 * (job.ranks - 1) * 4 * profile.parameters}


def weights(model: TorchModel) -> torch.Tensor:
    """Return all weights, flat."""
    return torch.cat([tensor.flatten() for tensor in model.module.state_dict().values()])


def result(model: TorchModel, job: Job, others: torch.Tensor) -> dict[str, Any]:
    """Return the result of a fit. `others`: the weights that another fit reached, equal but for the order of additions."""
    summary, found = model.summary or {}, weights(model)
    return {
        "samples": [row["seconds"] / job.steps for row in model.history[_WARM_UP_EPOCHS:]],
        "phases": breakdown.phases(model.timeline()),
        "overlapped": breakdown.mean_overlapped(model.timeline()),
        "bytes": sum(summary["bytes"].values()) / summary["iterations"],
        "batching": summary.get("batching", {}),
        "weights": hashlib.sha256(found.numpy().data).hexdigest(),
        "verified": bool((found - others).abs().max() <= 1e-5 * others.abs().max()),
    }


def results(spark: SparkSession, job: Job) -> Iterator[dict[str, Any]]:
    count, random = job.ranks * job.rows * job.steps, np.random.default_rng(5)
    features = random.random((count, _INPUTS), np.float32)
    table = pd.DataFrame({"features": list(features), "label": random.integers(0, 10, count)})
    data = spark.createDataFrame(table, "features array<float>, label long").coalesce(1).repartition(job.ranks).cache()
    for _ in range(job.warmup):
        train(spark, data, job, "layerwise")
    others: dict[bool, torch.Tensor] = {}
    for way in job.ways:
        if way == DDP:
            distributor = TorchDistributor(num_processes=job.ranks, local_mode=False, use_gpu=False)
            yield {"way": way, **distributor.run(train_with_ddp, job)}
        else:
            model = train(spark, data, job, way)
            if job.timeline and way == job.ways[0]:
                model.timeline().save(job.timeline)
            is_sparse = way in SPARSE_WAYS
            yield {"way": way, "sparse": is_sparse, **result(model, job, others.setdefault(is_sparse, weights(model)))}


if __name__ == "__main__":
    answer("bench_ps", Job, results)
