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

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.applications import bench_jar, set_rate, submit
from benchmarks.case import Case, case_of, number
from benchmarks.command import Note
from benchmarks.ibatch.job import DDP, REAL, WAYS, Job
from lab import Lab
from lab.bench import Row
from lab.spark import SparkCluster

import sparkdl_comm
from sparkdl_comm.errors import ConfError
from sparkdl_comm.jvm.planner import predict_iteration_seconds
from sparkdl_comm.topology import Topology

#: Application that trains in all ways.
JOB = Path(__file__).with_name("job.py")
#: Steps of an epoch. A quick run needs as many: an iteration is measured before the plan, and then the plan is tried.
STEPS = 4


def cases(options: Namespace) -> list[Case]:
    """Return a case for each network, pull-to-forward ratio and delay. Set the ways, if none are given.

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
    """Yield a row for each case and way.

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
        tried = next((plan["tried"] for plan in plans.values() if "tried" in plan), {})
        extra: dict[str, Any] = {
            "delay": case.delay,
            **case.about,
            "batches": {name: len(plan["batches"]) for name, plan in plans.items()},
            "predicted_seconds": predicted.get(way),
            "kept": {name: plan["kept"] for name, plan in plans.items()},
            "outcome": {name: plan["outcome"] for name, plan in plans.items()},
            "tried": {name: each["seconds"] for name, each in tried.items()},
            "tried_predicted": {name: each["predicted_seconds"] for name, each in tried.items()},
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
    """Return the predicted seconds of an iteration by way, with the batches in use.

    Batches that were cut without a profile are judged by the profile of another way, if possible one with several batches
    in flight. Without any profile there are no predictions.
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
