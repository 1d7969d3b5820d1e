"""Strategy auto: a fit predicts and tries several strategies, and keeps the fastest.

``candidates.py`` lists the candidates and predicts their step times, ``choice.py`` decides at rank 0, ``step_watch.py``
measures steps, and ``succession.py`` switches from one strategy to the next. Before a switch, a dense step sends the residuals
of compression. Strategies that add in the same order therefore give the same bits as one of them alone.
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

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.collectives.cost import Cost
from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.collectives.rank_group import RankGroup
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import (
    CHEAPEST,
    DECOUPLED,
    DECOUPLED_IBATCH,
    HITOPK,
    SERVER,
    NamedStrategy,
)
from sparkdl_comm.errors import ConfError, PluginError, nearest
from sparkdl_comm.gang.exchange import decide_json, gather_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.process_group import default_group
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.sim.server_run import Overhead
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.bucket_planner import planned as planned_buckets
from sparkdl_comm.strategies.candidates import (
    Candidate,
    Computing,
    Predictor,
    able,
)
from sparkdl_comm.strategies.choice import Choice, Turn
from sparkdl_comm.strategies.ps.bridge import Bridge
from sparkdl_comm.strategies.ps.planner import plan_buckets, unplanned
from sparkdl_comm.strategies.ps.probe import measured_overhead
from sparkdl_comm.strategies.registry import load_strategy
from sparkdl_comm.strategies.step_watch import StepWatch
from sparkdl_comm.strategies.succession import Succession
from sparkdl_comm.topology import Topology

_log = logging.getLogger(__name__)


class Chosen(Strategy):
    """Strategy that switches between others on one rank.

    A fit that resumes from a checkpoint begins with the strategy that wrote it, and repeats the trials.
    """

    compresses = True

    _attempt = ""
    _nccl: dist.ProcessGroup | None = None
    _group: CollectiveGroup | None = None
    _strategies: Succession | None = None
    #: Measures steps; None if there is nothing to choose.
    _steps: StepWatch | None = None

    def __init__(self, conf: CommConf) -> None:
        super().__init__(conf)
        self._left_out: dict[str, str] = {}
        #: Measurements that predictions use, at rank 0; None before the first decision.
        self._computing: Computing | None = None
        self._server: Overhead | None = None
        self._has_predicted = False
        #: Turn that follows once a dense step has sent the residuals, and whether that step was taken.
        self._next: Turn | None = None
        self._is_empty = False
        self._told = 0

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        load_strategy(replace(conf, strategy=CHEAPEST)).check(conf, world)
        for name in conf.auto_candidates:
            try:
                named = NamedStrategy.parse(name)
            except ValueError as error:
                raise ConfError(f"{PREFIX}auto.candidates: {name!r} must be {error}") from None
            alone = (CHEAPEST, HITOPK, *ALGORITHMS)
            decoupled = named.strategy in ALGORITHMS and named.loop == "decoupled"
            if not (decoupled or named.ps_batching or name in alone):
                raise ConfError(
                    f"{PREFIX}auto.candidates: {name!r} is no candidate. Use {', '.join(alone)}, an algorithm with"
                    f" {DECOUPLED} or {DECOUPLED_IBATCH}, or {SERVER}+ and a value of ps.batching"
                    f"{'' if named.strategy in (*alone, SERVER) else nearest(named.strategy, alone)}"
                )

    def advertise(self, attempt_id: str, rank: int) -> dict[str, Any]:
        self._attempt = attempt_id
        return {}

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        self._gang, self._model = gang, model
        timeout, device = self.conf.timeout, next(model.module.parameters()).device
        if device.type == "cuda":
            self._nccl = default_group("nccl", gang, timeout)
        ranks = RankGroup(gang, range(gang.world), "auto")
        self._group = group = CollectiveGroup(gang, CHEAPEST, self.conf, device, ranks)
        self._strategies = Succession(self._attempt, gang, model, make_optimizer, group, timeout)
        self.optimizer = self._strategies.optimizer
        told = gather_json(gang, {"plugin": self._no_plugin(), "planner": unplanned()}, timeout)
        found, self._left_out = self._able(
            group.topology,
            unstriped=self._strategies.unstriped,
            plugin=next(filter(None, (each["plugin"] for each in told)), None),
            planner=told[0]["planner"],
        )
        if not found or found[0].planned:
            named = f"{PREFIX}auto.candidates={','.join(self.conf.auto_candidates)}"
            raise ConfError(f"{named}: a fit must begin with a candidate without {DECOUPLED_IBATCH}: {self._left_out}")
        self._candidates = {candidate.name: candidate for candidate in found}
        server = next((each.conf for each in found if each.conf.strategy == SERVER), None)
        if server is not None and len(found) > 1:
            self._server = measured_overhead(self._strategies, gang, server)
        first = found[0].name
        same = Predictor(model, group.topology, group.cost).cheapest(self.conf) if first == CHEAPEST else None
        if same in self._candidates:
            self._left_out[CHEAPEST] = f"it chooses {same} for every bucket"
            del self._candidates[CHEAPEST]
            first = same
        self._begin(first)

    def _able(self, topology: Topology, **why_not: str | None) -> tuple[list[Candidate], dict[str, str]]:
        """Return the result of :func:`~sparkdl_comm.strategies.candidates.able` for this run's settings.

        :param why_not: the function's other keyword arguments.
        """
        return able(self.conf, topology, **why_not)

    def _begin(self, name: str) -> None:
        """Begin with this candidate, with no decision taken yet."""
        settling = {each.name: each.settling for each in self._candidates.values() if each.settling is not None}
        self._choice = Choice(name, settling)
        self._take(self._choice.turn)

    def _take(self, turn: Turn) -> None:
        if turn.candidate != self._turn.candidate:
            candidate = self._candidates[turn.candidate]
            self._all.take(candidate.conf, self.watch, self.trace, candidate.parts)
            self.sharded, self.global_mean = self._all.current.sharded, self._all.current.global_mean
        self._turn = turn
        if self._steps is None and len(self._candidates) > 1:
            self._steps = StepWatch(self._model, waited=lambda: self.watch.seconds["pull"])
        if self._steps is not None:
            self._steps.restart(turn.settling)

    _turn = Turn("", 0, 0)

    def before_forward(self) -> None:
        self._all.current.before_forward()

    def begin_step(self) -> None:
        if self._next is not None and self._is_empty:
            self._take(self._next)
            self._next = None
        elif self._next is None and self._steps is not None and len(self._steps.seconds) == self._turn.steps:
            self._decide(self._steps)
        if self._steps is not None:
            self._steps.begin()
        current = self._all.current
        current.step_info = self.step_info._replace(dense=self._next is not None)
        current.begin_step()

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        return self._all.current.forward()

    @contextlib.contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        watched = self._steps.backward() if last and self._steps is not None else contextlib.nullcontext()
        with watched, self._all.current.backward(last):
            yield

    def after_backward(self) -> None:
        self._all.current.after_backward()

    def gradients(self) -> list[torch.Tensor]:
        return self._all.current.gradients()

    def update(self, apply: bool = True) -> None:
        with self._steps.update() if self._steps is not None else contextlib.nullcontext():
            self._all.current.update(apply)
        self.optimizer.step()
        if self._next is not None:
            self._is_empty = apply
        elif self._steps is not None:
            self._steps.end()

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return self._all.current.owned()

    def optimizer_state(self) -> dict[str, Any]:
        return self._all.stored()

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        self._all.load(state)

    def state(self) -> dict[str, Any]:
        parts = self._candidates[self._turn.candidate].parts
        of_planned = {} if parts is None else {"parts": [list(part) for part in parts]}
        return {"candidate": self._turn.candidate, **of_planned, "of": self._all.current.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        name = state["candidate"]
        if name in self._candidates and "parts" in state:
            self._plan({name: state["parts"]})
        if name not in self._candidates:
            _log.warning(
                "the checkpoint is of strategy %s, which cannot run here; begins with %s",
                name,
                self._turn.candidate,
            )
            return
        self._begin(name)
        self._all.current.load_state(state["of"])

    def details(self) -> dict[str, Any]:
        """Return the details of the current strategy, and ``auto``.

        ``auto``: the strategy ``chosen`` last, the ``decisions`` (see :class:`~.choice.Decision`), the reasons why strategies
        were ``left_out``, and the parameter ``server``'s overhead in seconds (None: not measured).
        """
        decisions = [asdict(decision) for decision in self._choice.decisions]
        told: dict[str, Any] = {"chosen": self._turn.candidate, "decisions": decisions, "left_out": self._left_out}
        told["server"] = None if self._server is None else asdict(self._server)
        return {**self._all.current.details(), "auto": told}

    def finish(self) -> None:
        self._all.current.finish()

    def abort(self) -> None:
        if self._strategies is not None:
            self._strategies.abort()

    def close(self) -> None:
        for opened in (self._steps, self._strategies, self._group):
            if opened is not None:
                opened.close()
        if self._nccl is not None:
            self._nccl = None
            dist.destroy_process_group()

    @property
    def _all(self) -> Succession:
        assert self._strategies is not None, "join comes first"
        return self._strategies

    def _no_plugin(self) -> str | None:
        """Return why this executor has no parameter server; None if it has one."""
        try:
            Bridge.of_this_executor(self.conf.timeout).close()
        except PluginError as error:
            return error.message
        return None

    def _decide(self, steps: StepWatch) -> None:
        """End the turn and take the next one. All ranks call it before the same step."""
        timeout = self.conf.timeout
        mine = {"seconds": steps.seconds, "computing": None if self._has_predicted else asdict(steps.computing())}
        heard = decide_json(self._gang, mine, self._hear, timeout)
        if heard["predict"]:
            cost = self._measured_cost()
            heard = decide_json(self._gang, None, lambda _: self._predict(cost), timeout)
            self._plan(heard["planned"])
        turn = Turn(*heard["turn"])
        if turn.candidate != self._turn.candidate and self.conf.compression is not None:
            self._next, self._is_empty = turn, False
        else:
            self._take(turn)

    def _hear(self, told: list[dict[str, Any]]) -> dict[str, Any]:
        """Pass the step times of all ranks (``told``) to the choice, and return its answer. Rank 0 only."""
        if self._computing is None:
            slowest = max((each["computing"] for each in told), key=lambda each: each["forward"] + each["backward"])
            updated = slowest["update"] * (self._gang.world if self.sharded else 1)
            self._computing = Computing(**{**slowest, "arrivals": tuple(slowest["arrivals"]), "update": updated})
        seconds = [median_high(of_step) for of_step in zip(*(each["seconds"] for each in told), strict=True)]
        wants = self._choice.took(seconds, self.step_info.step)
        self._tell()
        return {"predict": wants, "turn": self._choice.turn}

    def _tell(self) -> None:
        for decision in self._choice.decisions[self._told :]:
            if decision.chosen is not None:
                self._told += 1
                how = decision.since, decision.chosen, decision.why, decision.measured, decision.predicted
                _log.info("from step %d on the strategy is %s (%s); seconds per step: measured %s, predicted %s", *how)

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
        assert self._computing is not None
        predictor = Predictor(self._model, self._group.topology, cost, self._server)
        plan = functools.partial(plan_buckets, timeout=self.conf.timeout)
        planned = {
            name: planned_buckets(predictor, each, self._computing, plan)
            for name, each in self._candidates.items()
            if each.planned and name != self._turn.candidate
        }
        candidates = {**self._candidates, **planned}
        seconds = {name: predictor.seconds(each, self._computing) for name, each in candidates.items()}
        families = {name: each.family for name, each in self._candidates.items()}
        self._choice.predicted(seconds, self.step_info.step, families)
        return {"turn": self._choice.turn, "planned": {name: each.parts for name, each in planned.items()}}

    def _plan(self, parts: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Set the planned buckets of candidates: (first element, end) of each, by candidate."""
        for name, of_candidate in parts.items():
            made = tuple((start, stop) for start, stop in of_candidate)
            self._candidates[name] = replace(self._candidates[name], parts=made)
