"""Faults at drawn moments of drawn fits: each ends right or with a typed error in time, and leaves nothing behind.

A case is drawn from its seed alone, see :mod:`tests.faults.cases`; a seed that failed once stays in KEPT. Flipped bytes are
those that Python sends: what executors' JVMs and gloo exchange is left alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.loopback import Loopback
from lab.spark import SparkCluster

from sparkdl_comm.topology import Topology
from tests import seeds
from tests.faults import cases, processes
from tests.faults.application import Application, Outcome
from tests.faults.audit import Audit
from tests.faults.cases import Case
from tests.faults.outside import Outside, can_cut

PER_CLUSTER = int(os.environ.get("SPARKDL_FAULT_CASES", "40"))
#: Of strategy fabric, on a local-cluster.
ASYNCHRONOUS = max(1, PER_CLUSTER // 4)
PAUSE_SECONDS = 0.015
#: A busy machine takes its time; what is too late is said by each case's own deadline.
HANG_SECONDS = 240.0
#: A case may take so many times longer than its fit takes without a fault, which says how busy the machine is.
SLOWNESS = 3.0
_ASYNCHRONOUS_SEEDS = 20_000
#: How far the weights of two strategies may be apart, as a share of the largest one.
_ROUNDING = 1e-5
#: Seeds of cases that failed, by cluster.
KEPT: dict[str, tuple[int, ...]] = {"local-cluster": (1, 7)}


def _drawn() -> list[Any]:
    """By cluster, as each takes an application of its own."""
    found: list[Case] = []
    for number, cluster in enumerate(cases.CLUSTERS):
        first = seeds.first() + 1000 * number
        for seed in dict.fromkeys((*KEPT.get(cluster, ()), *range(first, first + PER_CLUSTER))):
            found.append(cases.draw(seed, cluster))
        if cluster == "local-cluster":
            found += [
                cases.draw(_ASYNCHRONOUS_SEEDS + seed, cluster, cases.ASYNCHRONOUS)
                for seed in seeds.seeds(ASYNCHRONOUS)
            ]
    return [pytest.param(case, id=str(case)) for case in found]


class Range:
    """A cluster and an application on it, for as many cases as it survives."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self._folder = kind, folder
        self._undo = contextlib.ExitStack()
        master, self.slots = cases.CLUSTERS[kind]
        self._cluster = {"spark.master": master}
        self._name = secrets.token_hex(8)
        self._daemons: frozenset[int] = frozenset()
        self._undisturbed: dict[tuple[str, bool], Outcome] = {}
        self._started = 0
        self.application: Application | None = None
        self.audit: Audit | None = None
        if not master:
            self._start_standalone()

    def ready(self) -> Application:
        if self.application is None:
            self._started += 1
            folder = self._folder / str(self._started)
            folder.mkdir()
            self.application = Application(folder, self._cluster, self._name, HANG_SECONDS)
            self._fit("ps", files=False)
            self.audit = Audit(self.application, self.slots, self._daemons)
        return self.application

    def undisturbed(self, case: Case) -> Outcome:
        """How the case's fit ends without a fault."""
        key = (case.variant, case.files)
        if key not in self._undisturbed:
            self._undisturbed[key] = self._fit(*key)
        return self._undisturbed[key]

    def drop(self) -> None:
        """The application is gone, or cannot be used any more."""
        if self.application is not None:
            self.application.kill(self._daemons)
            self.application = self.audit = None

    def close(self) -> None:
        self.drop()
        self._undo.close()

    def _fit(self, variant: str, files: bool) -> Outcome:
        strategy, conf = (cases.VARIANTS | cases.ASYNCHRONOUS)[variant]
        marker = self.application.begin(
            strategy, conf=conf, settings={"maxIter": cases.EPOCHS}, files=files, settle=False
        )
        outcome = self.application.end(f"{variant} without a fault", marker)
        assert outcome.error is None, outcome.answer.get("text")
        least, most = (
            (cases.UPDATES, 2 * cases.UPDATES) if variant in cases.ASYNCHRONOUS else (cases.STEPS, cases.STEPS)
        )
        assert least <= outcome.updates <= most
        return outcome

    def _start_standalone(self) -> None:
        local = self._folder / "local-of-daemons"
        environment = {
            processes.VARIABLE: self._name,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ["PYTHONPATH"]]),
        }
        environment["SPARK_LOCAL_DIRS"] = str(local)
        hosts = self._undo.enter_context(Loopback(Topology.parse("star:3")))
        cluster = self._undo.enter_context(SparkCluster(hosts, env=environment))
        self._cluster = {"spark.master": cluster.master, **cluster.conf}
        self._daemons = frozenset(process.pid for process in processes.of_application(self._name))


@pytest.fixture(scope="module")
def fire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Gives the range for a cluster; of two kinds of clusters only one is up at a time."""
    ranges: list[Range] = []

    def of(kind: str) -> Range:
        if not ranges or ranges[-1].kind != kind:
            for old in ranges:
                old.close()
            ranges.append(Range(kind, tmp_path_factory.mktemp("fuzz")))
        return ranges[-1]

    yield of
    for old in ranges:
        old.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", _drawn())
def test_fault(fire: Any, covered: Counter[str], tmp_path: Path, case: Case) -> None:
    if case.fault == "cut executors" and not can_cut():
        pytest.skip("only root can end other processes' connections, with ss")
    ground = fire(case.cluster)
    application = ground.ready()
    undisturbed = ground.undisturbed(case)
    wrong = left = ["it hangs, or its application is gone"]
    try:
        wrong, left = _one(ground, application, case, undisturbed, tmp_path / "checkpoints", covered)
    finally:
        if left:
            ground.drop()  # not to be taken for what the next case leaves
    assert wrong + left == [], "\n".join([str(case), *wrong, *left])


def _one(
    ground: Range, application: Application, case: Case, undisturbed: Outcome, checkpoints: Path, covered: Counter[str]
) -> tuple[list[str], list[str]]:
    """Runs the case: what is wrong with how the fit ended, and what is left of it."""
    settings: dict[str, Any] = {"maxIter": cases.EPOCHS}
    if case.interval:
        settings |= {"checkpointDir": str(checkpoints), "checkpointInterval": case.interval}
    marker = application.begin(
        case.strategy,
        conf=case.conf,
        settings=settings,
        files=case.files,
        settle=False,
        action=case.fault if case.phase else "outside",
        phase=case.phase,
        step=case.step,
        rank=case.rank,
        pause=PAUSE_SECONDS,
        pick=case.pick,
    )
    outside = Outside(case, application, marker)
    if not case.phase:
        outside.strike()
    covered.update([f"fault: {case.fault}", f"strategy: {case.variant}", f"cluster: {case.cluster}"])
    if case.fault == "kill driver" and marker.exists():
        application.wait()
        covered.update(["struck", "ended: killed"])
        left = ground.audit.left_without_driver()
        ground.drop()
        return [], left
    try:
        outcome = application.end(str(case), marker)
    finally:
        outside.relent()
    covered.update(["struck" if outcome.struck else "too late", f"ended: {outcome.error or 'right'}"])
    return list(_wrong(case, outcome, undisturbed)), [*ground.audit.left(), *_checkpoints(outcome, checkpoints)]


def _same_weights(case: Case, outcome: Outcome, undisturbed: Outcome) -> bool:
    """To the last bit, but for `auto`: what it tries and chooses depends on times, and on that the order of additions."""
    if case.strategy != "auto":
        return bool(outcome.weights == undisturbed.weights)
    expected = np.array(undisturbed.values)
    return np.allclose(outcome.values, expected, rtol=0, atol=_ROUNDING * np.abs(expected).max())


def _wrong(case: Case, outcome: Outcome, undisturbed: Outcome) -> Iterator[str]:
    """It is to end right, or with a typed error, and in time."""
    what = f"{outcome.error} of {outcome.answer.get('module')}: {outcome.answer.get('text')}"
    deadline = case.deadline + SLOWNESS * undisturbed.seconds
    if outcome.mark is not None and outcome.ended_at - outcome.mark["at"] > deadline:
        yield f"{outcome.ended_at - outcome.mark['at']:.1f} s after the fault instead of {deadline:.1f}: {what}"
    if outcome.error is None and case.is_asynchronous:
        if outcome.updates < cases.UPDATES or not outcome.finite:
            yield f"{outcome.updates} updates, finite: {outcome.finite}, and no error; {outcome.mark}"
        return
    if outcome.error is None:
        if outcome.iterations != cases.STEPS or not _same_weights(case, outcome, undisturbed):
            yield f"wrong weights after {outcome.iterations} steps, and no error; {outcome.mark}"
        return
    kind = "KeyboardInterrupt" if case.fault.startswith("interrupt") else "SparkdlCommError"
    if not outcome.struck:
        yield f"no fault, and {what}"
    elif case.must_succeed:
        yield f"it should have gone on: {what}"
    elif kind not in outcome.bases:
        yield f"no {kind}: {what}"


def _checkpoints(outcome: Outcome, folder: Path) -> Iterator[str]:
    """Complete ones, and not more than are kept; a part of one if who wrote it failed."""
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    complete = [name for name in names if ".tmp-" not in name]
    if len(complete) > 2 or (outcome.error is None and complete != names):
        yield f"checkpoints {', '.join(names)}"


@pytest.mark.slow
def test_most_faults_struck(covered: Counter[str]) -> None:
    """The last test of this module: a fit that is over before its fault proves nothing."""
    if covered["struck"] + covered["too late"] < 20:
        pytest.skip("few cases were run")
    assert covered["too late"] < 0.25 * covered["struck"], covered
