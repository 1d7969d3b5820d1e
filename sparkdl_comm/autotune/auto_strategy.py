"""Strategy auto: a fit predicts and tries several strategies, and keeps the fastest.

Before a switch, a dense step sends the residuals of compression. Strategies that add in the same order therefore give the same
bits as one of them alone.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median_high
from typing import Any

import torch
import torch.distributed as dist

from sparkdl_comm.autotune.choice import Choice, Turn, find_candidates
from sparkdl_comm.autotune.prediction import StepPredictor, StepTimings, plan_candidate
from sparkdl_comm.autotune.strategy_switcher import StrategySwitcher
from sparkdl_comm.autotune.timing import StepTimer, measure_overhead
from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.group import CollectiveGroup, RankGroup
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import (
    CHEAPEST,
    DECOUPLED,
    DECOUPLED_IBATCH,
    HITOPK,
    SERVER,
    NamedStrategy,
    loop_name,
)
from sparkdl_comm.errors import ConfError, PluginError, nearest
from sparkdl_comm.gang.exchange import decide_json, gather_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.process_group import default_group
from sparkdl_comm.jvm.bridge import Bridge
from sparkdl_comm.jvm.planner import plan_buckets, why_unavailable
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.sim.server_run import Overhead
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.registry import load_strategy

_log = logging.getLogger(__name__)


class AutoStrategy(Strategy):
    """Strategy that tries other strategies in turn, and keeps the fastest. Each rank has one instance.

    All ranks switch before the same step. A fit that resumes from a checkpoint begins with the strategy that wrote the
    checkpoint, and repeats the trials.
    """

    can_compress = True

    _attempt_id = ""
    _nccl: dist.ProcessGroup | None = None
    _group: CollectiveGroup | None = None
    _optional_switcher: StrategySwitcher | None = None
    #: Measures steps; None if there is nothing to choose.
    _timer: StepTimer | None = None
    _turn = Turn("", 0, 0)

    def __init__(self, conf: CommConf) -> None:
        super().__init__(conf)
        self._left_out: dict[str, str] = {}
        #: Measurements that predictions use, at rank 0; None before the first decision.
        self._timings: StepTimings | None = None
        self._server_overhead: Overhead | None = None
        self._has_predicted = False
        #: Turn that follows once a dense step has sent the residuals, and whether that step was taken.
        self._pending_turn: Turn | None = None
        self._has_sent_residuals = False
        self._logged_count = 0

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        load_strategy(replace(conf, strategy=CHEAPEST)).check(conf, world)
        for name in conf.auto.candidates:
            try:
                named = NamedStrategy.parse(name)
            except ValueError as error:
                raise ConfError(f"{PREFIX}auto.candidates: {name!r} must be {error}") from None
            plain_names = (CHEAPEST, HITOPK, *ALGORITHMS)
            decoupled = named.strategy in ALGORITHMS and named.loop == "decoupled"
            if not (decoupled or named.ps_batching or name in plain_names):
                raise ConfError(
                    f"{PREFIX}auto.candidates: {name!r} is no candidate. Use {', '.join(plain_names)}, an algorithm with"
                    f" {DECOUPLED} or {DECOUPLED_IBATCH}, or {SERVER}+ and a value of ps.batching"
                    f"{'' if named.strategy in (*plain_names, SERVER) else nearest(named.strategy, plain_names)}"
                )

    def advertise(self, attempt_id: str, rank: int) -> dict[str, Any]:
        self._attempt_id = attempt_id
        return {}

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        self._gang, self._model = gang, model
        timeout, device = self.conf.timeout, model.device
        if device.type == "cuda":
            self._nccl = default_group("nccl", gang, timeout)
        ranks = RankGroup(gang, range(gang.world), "auto")
        self._group = group = CollectiveGroup(gang, CHEAPEST, self.conf, device, ranks)
        self._optional_switcher = StrategySwitcher(self._attempt_id, gang, model, make_optimizer, group, timeout)
        self.optimizer = self._optional_switcher.optimizer
        reports = gather_json(gang, {"plugin": self._check_plugin(), "planner": why_unavailable()}, timeout)
        candidates, self._left_out = find_candidates(
            self.conf,
            group.topology,
            why_not_striped=self._optional_switcher.why_not_striped,
            why_no_plugin=next(filter(None, (each["plugin"] for each in reports)), None),
            why_no_planner=reports[0]["planner"],
        )
        if not candidates or candidates[0].is_planned:
            named = f"{PREFIX}auto.candidates={','.join(self.conf.auto.candidates)}"
            raise ConfError(f"{named}: a fit must begin with a candidate without {DECOUPLED_IBATCH}: {self._left_out}")
        self._candidates = {candidate.name: candidate for candidate in candidates}
        server = next((each.conf for each in candidates if each.conf.strategy == SERVER), None)
        if server is not None and len(candidates) > 1:
            self._server_overhead = measure_overhead(self._optional_switcher, gang, server)
        first = candidates[0].name
        only_algorithm = (
            StepPredictor(model, group.topology, group.cost).find_cheapest(self.conf) if first == CHEAPEST else None
        )
        if only_algorithm in self._candidates:
            self._left_out[CHEAPEST] = f"it chooses {only_algorithm} for every bucket"
            del self._candidates[CHEAPEST]
            first = only_algorithm
        self._begin_with(first)

    def _begin_with(self, name: str) -> None:
        """Begin with this candidate, with no decision taken yet."""
        settling = {each.name: each.settling for each in self._candidates.values() if each.settling is not None}
        self._choice = Choice(name, settling)
        self._apply_turn(self._choice.turn)

    def _apply_turn(self, turn: Turn) -> None:
        if turn.candidate != self._turn.candidate:
            candidate = self._candidates[turn.candidate]
            self._switcher.switch_to(candidate.conf, self.watch, self.trace, candidate.parts)
            current = self._switcher.current
            self.is_sharded, self.needs_global_mean = current.is_sharded, current.needs_global_mean
        self._turn = turn
        if self._timer is None and len(self._candidates) > 1:
            self._timer = StepTimer(self._model, wait_seconds=lambda: self.watch.seconds["pull"])
        if self._timer is not None:
            self._timer.restart(turn.settling)

    def before_forward(self) -> None:
        self._switcher.current.before_forward()

    def begin_step(self) -> None:
        if self._pending_turn is not None and self._has_sent_residuals:
            self._apply_turn(self._pending_turn)
            self._pending_turn = None
        elif self._pending_turn is None and self._timer is not None and len(self._timer.seconds) == self._turn.steps:
            self._decide(self._timer)
        if self._timer is not None:
            self._timer.begin()
        current = self._switcher.current
        current.step_info = self.step_info._replace(dense=self._pending_turn is not None)
        current.begin_step()

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        return self._switcher.current.forward()

    @contextlib.contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        timing = self._timer.backward() if last and self._timer is not None else contextlib.nullcontext()
        with timing, self._switcher.current.backward(last):
            yield

    def after_backward(self) -> None:
        self._switcher.current.after_backward()

    def gradients(self) -> list[torch.Tensor]:
        return self._switcher.current.gradients()

    def update(self, apply: bool = True) -> None:
        with self._timer.update() if self._timer is not None else contextlib.nullcontext():
            self._switcher.current.update(apply)
        self.optimizer.step()
        if self._pending_turn is not None:
            self._has_sent_residuals = apply
        elif self._timer is not None:
            self._timer.end()

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return self._switcher.current.owned()

    def optimizer_state(self) -> dict[str, Any]:
        return self._switcher.optimizer_state()

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        self._switcher.load_optimizer_state(state)

    def state(self) -> dict[str, Any]:
        parts = self._candidates[self._turn.candidate].parts
        planned_ranges = {} if parts is None else {"parts": [list(part) for part in parts]}
        return {"candidate": self._turn.candidate, **planned_ranges, "of": self._switcher.current.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        name = state["candidate"]
        if name in self._candidates and "parts" in state:
            self._set_bucket_ranges({name: state["parts"]})
        if name not in self._candidates:
            _log.warning(
                "the checkpoint is of strategy %s, which cannot run here; begins with %s",
                name,
                self._turn.candidate,
            )
            return
        self._begin_with(name)
        self._switcher.current.load_state(state["of"])

    def details(self) -> dict[str, Any]:
        """Return the details of the current strategy, and ``auto``.

        ``auto``: the strategy ``chosen`` last (None while the first decision is open), the ``decisions`` (see
        :class:`~.choice.Decision`), the reasons why strategies were ``left_out``, and the parameter ``server``'s overhead in
        seconds (None: not measured).
        """
        decisions = self._choice.decisions
        in_use = None if decisions else self._turn.candidate
        auto: dict[str, Any] = {
            "chosen": next((each.chosen for each in reversed(decisions) if each.chosen is not None), in_use),
            "decisions": [asdict(decision) for decision in decisions],
            "left_out": self._left_out,
        }
        auto["server"] = None if self._server_overhead is None else asdict(self._server_overhead)
        return {**self._switcher.current.details(), "auto": auto}

    def finish(self) -> None:
        self._switcher.current.finish()

    def abort(self) -> None:
        if self._optional_switcher is not None:
            self._optional_switcher.abort()

    def close(self) -> None:
        for resource in (self._optional_switcher, self._group):
            if resource is not None:
                resource.close()
        if self._nccl is not None:
            self._nccl = None
            dist.destroy_process_group()

    @property
    def _switcher(self) -> StrategySwitcher:
        assert self._optional_switcher is not None, "join comes first"
        return self._optional_switcher

    def _check_plugin(self) -> str | None:
        """Return why this executor has no parameter server; None if it has one."""
        try:
            Bridge.connect(self.conf.timeout).close()
        except PluginError as error:
            return error.message
        return None

    def _decide(self, timer: StepTimer) -> None:
        """End the turn and take the next one. All ranks call it before the same step."""
        timeout = self.conf.timeout
        report = {
            "seconds": timer.seconds,
            "computing": None if self._has_predicted else asdict(timer.average_timings()),
        }
        answer = decide_json(self._gang, report, self._record_turns, timeout)
        if answer["predict"]:
            cost = self._measured_cost()
            answer = decide_json(self._gang, None, lambda _: self._predict(cost), timeout)
            self._set_bucket_ranges(answer["planned"])
        turn = Turn(*answer["turn"])
        if turn.candidate != self._turn.candidate and self.conf.compression.method is not None:
            self._pending_turn, self._has_sent_residuals = turn, False
        else:
            self._apply_turn(turn)

    def _record_turns(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """Pass the step times of all ranks (``reports``) to the choice, and return its answer. Rank 0 only."""
        if self._timings is None:
            slowest = max((each["computing"] for each in reports), key=lambda each: each["forward"] + each["backward"])
            updated = slowest["update"] * (self._gang.world if self.is_sharded else 1)
            self._timings = StepTimings(**{**slowest, "arrivals": tuple(slowest["arrivals"]), "update": updated})
        seconds = [median_high(of_step) for of_step in zip(*(each["seconds"] for each in reports), strict=True)]
        needs_prediction = self._choice.record_turn(seconds, self.step_info.step)
        self._log_decisions()
        return {"predict": needs_prediction, "turn": self._choice.turn}

    def _log_decisions(self) -> None:
        for decision in self._choice.decisions[self._logged_count :]:
            if decision.chosen is not None:
                self._logged_count += 1
                fields = decision.since, decision.chosen, decision.why, decision.measured, decision.predicted
                _log.info(
                    "from step %d on the strategy is %s (%s); seconds per step: measured %s, predicted %s", *fields
                )

    def _measured_cost(self) -> Cost:
        """Return the cost of the links, measured again except in the first decision. All ranks call it."""
        assert self._group is not None
        first, self._has_predicted = not self._has_predicted, True
        if first:
            return self._group.cost
        self.before_forward()  # parameters in flight would slow the measurement
        return self._group.measure()

    def _predict(self, cost: Cost) -> dict[str, Any]:
        """Predict all candidates, and return the first turn of the decision. Rank 0 only."""
        assert self._group is not None
        assert self._timings is not None
        predictor = StepPredictor(self._model, self._group.topology, cost, self._server_overhead)
        plan = functools.partial(plan_buckets, timeout=self.conf.timeout)
        planned = {
            name: plan_candidate(predictor, each, self._timings, plan)
            for name, each in self._candidates.items()
            if each.is_planned and name != self._turn.candidate
        }
        candidates = {**self._candidates, **planned}
        seconds = {name: predictor.predict(each, self._timings) for name, each in candidates.items()}
        families = {name: each.family for name, each in self._candidates.items()}
        self._choice.start_decision(seconds, self.step_info.step, families)
        return {"turn": self._choice.turn, "planned": {name: each.parts for name, each in planned.items()}}

    def _set_bucket_ranges(self, parts: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Set the planned buckets of candidates: (first element, end) of each, by candidate."""
        for name, of_candidate in parts.items():
            ranges = tuple((start, stop) for start, stop in of_candidate)
            self._candidates[name] = replace(self._candidates[name], parts=ranges)


class PlannedBuckets(AutoStrategy):
    """Strategy of ``collective.batching=ibatch``: a decoupled collective with fixed or planned buckets.

    The planner needs each layer's compute time, so a fit begins with buckets cut by ``collective.bucket``. It then chooses
    between these and the planned buckets as ``auto`` chooses between strategies. Planned buckets are not cut again while they
    are in use. The summary's ``auto`` lists predictions and choices.
    """

    can_compress = False
    has_stripes = True

    @classmethod
    def full_name(cls, conf: CommConf) -> str:
        return loop_name(conf.strategy, conf.collective.loop, conf.collective.batching)

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        if conf.collective.loop != "decoupled":
            raise ConfError(
                f"{PREFIX}collective.batching={conf.collective.batching} is for collective.loop=decoupled, not"
                f" {conf.collective.loop}: set one of the two (strategy ps has ps.batching)"
            )
        conf = replace(conf, collective=replace(conf.collective, batching="fixed"))
        load_strategy(conf).check(conf, world)
