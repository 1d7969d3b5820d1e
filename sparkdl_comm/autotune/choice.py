"""Candidates of strategy ``auto``, and the choice between them. Pure.

:func:`find_candidates` lists what topology, conf, optimizer and plugin allow. :class:`Choice` then decides by predictions, by
trials in real steps, and by new trials when step times drift.

Rank 0 decides for all ranks. Between two decisions the ranks run one *turn*: a few unmeasured steps with one candidate, then
some measured ones. After each turn the ranks report their step times to rank 0, which returns the next turn.

1. The first candidate takes some steps, which measure the compute time. Then all candidates are predicted.
2. Candidates belong to families, such as all-reduces. From each family only the candidate with the fastest prediction can be
   tried. The trials begin with the fastest of these predictions. A candidate is left out if its prediction is well above the
   fastest measured step. A trial ends after one step if that step is far slower than the fastest measured one.
3. The fastest candidate stays. If none beats the incumbent by more than chance, the incumbent stays.
4. From then on each turn is a *window*. If a window's median step time is far from the time measured in the trial, in either
   direction, the candidates are predicted and tried again.
5. Candidates that need many steps to settle may have been left out of the first trials. They are tried after a calm window, if
   they are predicted to be faster.

The time spent on trials is bounded. Each alarm widens the drift limit for the next one, and calm windows narrow it again.
Steps that keep drifting are therefore tried again ever more rarely, down to one alarm in :data:`CALM_WINDOWS` windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from sparkdl_comm.collectives.cost import list_eligible
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import CHEAPEST, DECOUPLED_IBATCH, HITOPK, IBATCH, SERVER, loop_name
from sparkdl_comm.errors import ConfError, PluginError
from sparkdl_comm.sim.server_run import SIMPLE_BATCHINGS
from sparkdl_comm.strategies.registry import load_strategy
from sparkdl_comm.topology import Topology

#: Iterations that the server's planner profiles under auto: too few for trials of its own, because auto runs the trials.
_PROFILED_STEPS = 2
#: Unmeasured steps of the parameter server: while its JVMs compile; and before a plan takes effect: the first step, the
#: profiled ones, and the first one with the plan.
_COMPILING_STEPS, _PLANNING_STEPS = 2, _PROFILED_STEPS + 2
#: Unmeasured steps after a change of candidate: they open connections and touch memory for the first time.
SETTLING_STEPS = 1
#: Candidates with more settling steps than this are slow to settle. They are tried last: in the first trials if no other
#: candidate has the same prediction, otherwise after a calm window.
MAX_QUICK_SETTLING_STEPS = 3
#: Measured steps: of the first turn, of a trial at first, of a trial that is continued, and of a window.
FIRST_STEPS, TRIAL_STEPS, EXTRA_STEPS, WINDOW_STEPS = 3, 1, 2, 5
#: Number of candidates tried against the incumbent: at the beginning, and after an alarm, when time matters more.
MAX_FIRST_TRIALS, MAX_LATER_TRIALS = 3, 2
#: A candidate is tried if its prediction exceeds the fastest measured step by at most this fraction.
NEAR_FRACTION = 0.15
#: A trial is dropped if its step time exceeds the fastest candidate's by more than this fraction.
BEHIND_FRACTION = 0.25
#: Fraction by which a candidate must beat the incumbent to replace it; a smaller difference is chance.
MARGIN = 0.03
#: Fraction by which a window may differ from the measured step time; factor of this limit at each alarm; number of calm
#: windows after which the limit shrinks again.
DRIFT_LIMIT, LIMIT_GROWTH, CALM_WINDOWS = 0.2, 1.5, 20


@dataclass(frozen=True)
class Candidate:
    """Candidate strategy, set by ``conf``.

    ``family``: name shared by similar candidates. ``settling``: number of steps until its step time is steady; None: the
    usual number. ``is_planned``: True if iBatch's planner cuts its buckets; ``parts``: these buckets, once they are planned.
    """

    name: str
    family: str
    conf: CommConf
    settling: int | None = None
    is_planned: bool = False
    parts: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def decoupled(cls, algorithm: str, conf: CommConf, *, is_planned: bool = False) -> Candidate:
        """Return the decoupled loop of ``algorithm``, with the other settings of ``conf``."""
        settings = replace(conf.collective, loop="decoupled", batching="fixed")
        conf = replace(conf, strategy=algorithm, collective=settings)
        name = loop_name(algorithm, settings.loop, IBATCH if is_planned else settings.batching)
        return cls(name, "decoupled", conf, is_planned=is_planned)


def find_candidates(
    conf: CommConf,
    topology: Topology,
    *,
    why_not_striped: str | None,
    why_no_plugin: str | None,
    why_no_planner: str | None,
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the candidates that can run, and for each other candidate, by name, the reason why it cannot.

    The fit begins with the first candidate.

    Decoupled collectives with planned buckets are candidates only if ``auto.candidates`` names them. They come last. With
    ``collective.batching=ibatch`` the candidates are the fixed and the planned buckets of ``conf.strategy``, decoupled.

    :param why_not_striped: why the optimizer cannot update stripes of parameters; None if it can.
    :param why_no_plugin: why there is no parameter server; None if there is one.
    :param why_no_planner: why buckets of collectives cannot be planned; None if they can.
    :raises PluginError: ``collective.batching=ibatch``, and buckets cannot be planned.
    """
    if conf.collective.batching != "fixed":
        if why_no_planner is not None:
            raise PluginError(f"{PREFIX}collective.batching={conf.collective.batching}: {why_no_planner}")
        fixed, planned = (
            Candidate.decoupled(conf.strategy, conf, is_planned=is_planned) for is_planned in (False, True)
        )
        reason = "there is one rank" if topology.world == 1 else why_not_striped
        return ([fixed], {planned.name: reason}) if reason else ([fixed, planned], {})
    is_compressed = conf.compression.method is not None
    conf = replace(conf, collective=replace(conf.collective, loop="all-reduce"))
    names = [] if is_compressed else [algorithm.name for algorithm in list_eligible("all_reduce", topology)]
    found = [Candidate(name, "all-reduce", replace(conf, strategy=name)) for name in [CHEAPEST, *names]]
    found += [Candidate.decoupled(name, conf) for name in names]
    found += [Candidate(HITOPK, HITOPK, replace(conf, strategy=HITOPK))] * is_compressed
    batchings = (*SIMPLE_BATCHINGS, IBATCH) if conf.ps.batching == IBATCH else (conf.ps.batching,)
    for batching in batchings:
        settings = replace(conf.ps, batching=batching)
        is_profiled = batching not in SIMPLE_BATCHINGS and not batching.startswith("fixed")
        if is_profiled:
            settings = replace(settings, profile_iterations=min(conf.ps.profile_iterations, _PROFILED_STEPS))
        settling = _PLANNING_STEPS if is_profiled else _COMPILING_STEPS
        server_conf = replace(conf, strategy=SERVER, ps=settings)
        found.append(Candidate(f"{SERVER}+{batching}", f"{SERVER}+{batching}", server_conf, settling))
    found += [
        Candidate.decoupled(name, conf, is_planned=True)
        for name in names
        if f"{name}{DECOUPLED_IBATCH}" in conf.auto.candidates
    ]
    reasons = {
        each.name: (why_no_planner if each.is_planned else None)
        or _why_ineligible(each, topology, why_not_striped, why_no_plugin)
        for each in found
    }
    left_out = {name: reason for name, reason in reasons.items() if reason is not None}
    return [each for each in found if each.name not in left_out], left_out


def _why_ineligible(
    candidate: Candidate, topology: Topology, why_not_striped: str | None, why_no_plugin: str | None
) -> str | None:
    conf, kind = candidate.conf, load_strategy(candidate.conf)
    try:
        kind.check(conf, topology.world)
    except ConfError as error:
        return error.message
    if conf.auto.candidates and candidate.name not in conf.auto.candidates:
        return f"not in {PREFIX}auto.candidates"
    if candidate.name == CHEAPEST:
        return None
    if topology.world == 1:
        return "there is one rank"
    if conf.compression.method is not None:
        if conf.compression.momentum or conf.compression.method.rank:
            return "the state of powersgd and momentum correction cannot move to another strategy"
        if conf.compression.schedule.auto:
            return f"{PREFIX}compression.schedule={conf.compression.schedule} has a trial of its own"
    if kind.has_stripes and conf.collective.resync:
        setting = f"{PREFIX}collective.resync={conf.collective.resync}"
        return f"{setting} needs a strategy in which every rank updates all parameters"
    if kind.needs_plugin and why_no_plugin is not None:
        return why_no_plugin
    return why_not_striped if kind.has_stripes else None


class Turn(NamedTuple):
    """Turn of a ``candidate``: ``settling`` unmeasured steps, then ``steps`` measured ones."""

    candidate: str
    settling: int
    steps: int


@dataclass
class Decision:
    """Decision that began before ``step`` (from 1), for the reason ``why``.

    ``predicted`` and ``measured``: seconds of a step, by candidate. ``chosen``: the candidate used from step ``since`` on;
    both are None while trials run.
    """

    step: int
    why: str
    predicted: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    chosen: str | None = None
    since: int | None = None


class Choice:
    """Choice at rank 0.

    Call :meth:`record_turn` after each turn and, if it returns True, :meth:`start_decision`. :attr:`turn` is the next turn.

    :param first: the candidate to begin with.
    :param settling: number of unmeasured steps of candidates that need more than :data:`SETTLING_STEPS`.
    """

    def __init__(self, first: str, settling: Mapping[str, int] | None = None) -> None:
        self._settling_steps = dict(settling or {})
        self.turn = Turn(first, self._get_settling_steps(first) + 1, FIRST_STEPS)
        #: All decisions; the last one may still be open.
        self.decisions: list[Decision] = []
        self._incumbent = first
        self._trial_queue: list[str] = []
        self._slow_candidates: list[str] = []  # slow to settle: tried after a calm window
        self._trial_seconds: list[float] = []  # measured seconds of the candidate on trial
        self._reference_seconds: float | None = None  # seconds of a step of the incumbent; None during trials
        self._drift_limit, self._calm_windows = DRIFT_LIMIT, 0
        self._why = "the beginning"
        self._latest_seconds = 0.0

    def record_turn(self, seconds: Sequence[float], step: int) -> bool:
        """Record the turn that has just ended: ``seconds`` of its measured steps. The next step is number ``step``.

        Return True if a new decision begins, for which the caller must call :meth:`start_decision`.
        """
        self._latest_seconds = median(seconds)
        if self._reference_seconds is not None:
            if self._check_drift(self._latest_seconds, self._reference_seconds):
                return True
            self._try_slow(step)
            return False
        if not self.decisions:
            return True
        self._trial_seconds += seconds
        now, best = median(self._trial_seconds), min(self.decisions[-1].measured.values())
        candidate = self.turn.candidate
        if len(self._trial_seconds) < TRIAL_STEPS + EXTRA_STEPS and now <= (1 + BEHIND_FRACTION) * best:
            self.turn = Turn(candidate, 0, EXTRA_STEPS)
            return False
        self.decisions[-1].measured[candidate] = now
        self._advance(step)
        return False

    def start_decision(
        self, seconds: Mapping[str, float], step: int, families: Mapping[str, str] | None = None
    ) -> None:
        """Begin a decision with the predicted ``seconds`` of a step of each candidate. The incumbent has just been measured.

        ``families``: the family of each candidate; at most one of a family is tried. A candidate not listed is its own family.
        """
        is_repeat = bool(self.decisions)
        self.decisions.append(Decision(step, self._why, dict(seconds), {self._incumbent: self._latest_seconds}))
        self._reference_seconds = None
        best: dict[str, str] = {}  # by family
        for name in sorted(seconds, key=lambda name: seconds[name]):
            best.setdefault((families or {}).get(name, name), name)
        quick_seconds = {taken for name, taken in seconds.items() if self._is_quick(name)}
        contenders = [name for name in best.values() if name != self._incumbent]
        eligible = [
            name for name in contenders if self._is_quick(name) or not (is_repeat or seconds[name] in quick_seconds)
        ]
        self._trial_queue = sorted(
            eligible[: MAX_LATER_TRIALS if is_repeat else MAX_FIRST_TRIALS], key=self._is_quick, reverse=True
        )
        self._slow_candidates = [
            name for name in contenders if not self._is_quick(name) and name not in self._trial_queue
        ]
        self._advance(step)

    def _advance(self, step: int) -> None:
        """Begin the next candidate's trial, or end the decision."""
        self._trial_seconds = []
        self._trial_queue = self._select_near(self._trial_queue)
        if self._trial_queue:
            candidate = self._trial_queue.pop(0)
            self.turn = Turn(candidate, self._get_settling_steps(candidate), TRIAL_STEPS)
            return
        decision = self.decisions[-1]
        measured = decision.measured
        best = min(measured, key=lambda name: measured[name])
        if measured[best] > (1 - MARGIN) * measured[self._incumbent]:
            best = self._incumbent
        stays = best == self.turn.candidate
        self._incumbent, decision.chosen, decision.since = best, best, step
        self._reference_seconds = measured[best]
        self.turn = Turn(best, 0 if stays else SETTLING_STEPS, WINDOW_STEPS)

    def _select_near(self, names: Sequence[str]) -> list[str]:
        """Return the candidates that may be about as fast as the fastest one measured in this decision."""
        decision = self.decisions[-1]
        # Scale predictions by the incumbent's measured over predicted time: its own error must not rule out others.
        scale = decision.measured[self._incumbent] / decision.predicted[self._incumbent]
        limit = (1 + NEAR_FRACTION) * min(decision.measured.values())
        return [name for name in names if decision.predicted[name] * scale <= limit]

    def _try_slow(self, step: int) -> None:
        """Begin a decision between the incumbent and the candidates that settle slowly, with the last predictions."""
        if not self._slow_candidates:
            return
        predicted = self.decisions[-1].predicted
        slow = [
            name for name in self._select_near(self._slow_candidates) if predicted[name] < predicted[self._incumbent]
        ]
        self._slow_candidates = []
        if slow:
            why = f"trying {' and '.join(slow)} takes long, and can be afforded now"
            self.decisions.append(Decision(step, why, predicted, {self._incumbent: self._latest_seconds}))
            self._reference_seconds, self._trial_queue = None, slow
            self._advance(step)

    def _check_drift(self, now: float, reference: float) -> bool:
        """Return True if the window's median is so far from the reference that a new decision must begin."""
        self.turn = Turn(self._incumbent, 0, WINDOW_STEPS)
        if max(now, reference) <= (1 + self._drift_limit) * min(now, reference):
            self._calm_windows += 1
            if self._calm_windows >= CALM_WINDOWS:
                self._drift_limit, self._calm_windows = max(DRIFT_LIMIT, self._drift_limit / LIMIT_GROWTH), 0
            return False
        self._drift_limit, self._calm_windows = self._drift_limit * LIMIT_GROWTH, 0
        self._why = f"steps of {self._incumbent} took {now:.4g} s in place of {reference:.4g} s"
        return True

    def _is_quick(self, candidate: str) -> bool:
        return self._get_settling_steps(candidate) <= MAX_QUICK_SETTLING_STEPS

    def _get_settling_steps(self, candidate: str) -> int:
        return self._settling_steps.get(candidate, SETTLING_STEPS)
