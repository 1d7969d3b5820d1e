"""Which batches layers travel in, and when they are planned anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.space.cut import Batches
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.ps.profile import Direction, Profiler, agree, agreed_seconds, drift
from sparkdl_comm.strategies.ps.trial import Trial

#: Policies that cut without knowing how long anything takes.
_BLIND = ("whole", "layerwise", "fixed")

#: What an `ibatch` plan of both directions is tried against: how many layers are in a batch, of so many.
_PLAIN: dict[str, Callable[[int], int]] = {"whole": lambda layers: layers, "layerwise": lambda layers: 1}

#: Of an element on the wire.
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

#: Once there is a plan, the profile is looked at again after this many times `profileIterations`.
_LOOK_AGAIN = 10

Planner = Callable[..., dict[str, Any]]


def policies(conf: CommConf) -> dict[str, str]:
    """By direction."""
    return {"pull": conf.ps_batching, "push": conf.ps_push_batching or conf.ps_batching}


class Batching:
    """The batches of one rank; all ranks have the same ones in the same step.

    A policy that needs a profile begins with one batch for everything, and plans after ``ps.profileIterations`` steps. Where
    pulls go on while gradients are pushed, ``ibatch`` plans both together; for as many steps more that plan is tried, and for
    as many again ``layerwise``. It stays with what was the fastest.

    ``pulls``, ``pushes``: the first batches. ``plans``: the last ones by direction, each with ``policy``, ``batches`` (see
    sparkdl_comm.strategies.ps.plan.Plan) and, if it was made from a profile, ``predicted_seconds``, ``optimal_ratio`` and the
    ``profile``, as `sparkdl-comm plan` takes it; if both were made together, ``iteration_seconds``, what is predicted of both,
    and when the trial is over ``tried``, seconds of an iteration by what was tried.
    ``profiler``: what to tell how long things take; None if nobody wants to know.
    """

    def __init__(
        self, conf: CommConf, model: FlatModel, gang: Gang, planner: Planner, *, ahead: bool, fetch_above: int
    ) -> None:
        """``planner(**request)``: the executor's, see PlanRequest.scala. ``ahead``: whether parameters are pulled while
        gradients are still pushed. ``fetch_above``: bytes of a block up to which it comes with its notice."""
        self._conf, self._model, self._gang, self._ask = conf, model, gang, planner
        self._ahead, self._fetch_above = ahead, fetch_above
        self._policies = policies(conf)
        self._profiled: dict[str, Direction] = {}
        self._trial: Trial | None = None
        self.plans: dict[str, dict[str, Any]] = {}
        self.pulls, self.pushes = self._plan_both()
        self.profiler: Profiler | None = None
        blind = [policy.partition(":")[0] in _BLIND for policy in self._policies.values()]
        if not all(blind) and gang.world > 1:
            self.profiler = Profiler(len(model.layers), conf.ps_profile_iterations)

    def report(self) -> dict[str, dict[str, Any]]:
        """The last plans, with what was ``asked`` for, and the ``outcome`` of that."""
        return {
            name: {**plan, "asked": self._policies[name], "outcome": self._outcome(name)}
            for name, plan in self.plans.items()
        }

    def _outcome(self, direction: str) -> str:
        policy = self._policies[direction]
        if policy.partition(":")[0] in _BLIND:
            return "used"
        if direction not in self._profiled:
            return (
                f"not tried: nothing was measured in {self._conf.ps_profile_iterations} iterations"
                " (spark.sparkdl.comm.ps.profileIterations): fewer were done, or there is one rank, or a GPU"
            )
        if self._trial is None:
            return "used"
        if not self._trial.is_over:
            return f"used: on trial when the run ended, {self._trial.current} in use"
        chosen = self._trial.current
        return "tried, and used" if chosen == policy else f"tried, and rejected: {chosen} was faster"

    def due(self, step: int) -> bool:
        """Whether all ranks look at the profile after this step, counted from 1. The first one is not measured."""
        if self.profiler is None:
            return False
        looks, rest = divmod(step - 1, self._conf.ps_profile_iterations)
        return rest == 0 and (looks == 1 or (looks > 1 and (self._is_trying or looks % _LOOK_AGAIN == 1)))

    def replan(self) -> tuple[Batches, Batches] | None:
        """Batches for pulls and pushes, after the ranks agreed on what they measured; None if they stay as they are.

        All ranks call it in the same step. Takes two trips to rank 0.
        """
        assert self.profiler is not None, "nothing is due"
        own = json.dumps(self.profiler.report()).encode()
        reports = [json.loads(report) for report in self._gang.all_gather(own, self._conf.timeout)]
        seconds = agreed_seconds(reports)
        if self._is_trying and seconds is not None:
            return self._try_on(seconds)
        is_first, changed = not self._profiled, False
        for name in self._policies:
            now = agree(reports, name)
            before = self._profiled.get(name)
            if now is not None and (before is None or drift(before, now) > self._conf.ps_replan_drift):
                self._profiled[name] = now
                changed = True
        if not changed:
            return None
        used = self._batches()
        made = self._plan_both()
        if self._shares_the_network and seconds is not None and (is_first or self._batches() != used):
            self._begin_trial(seconds, is_first)
        return made

    def _batches(self) -> list[list[list[int]]]:
        return [plan["batches"] for plan in self.plans.values()]

    @property
    def _is_trying(self) -> bool:
        return self._trial is not None and not self._trial.is_over

    @property
    def _shares_the_network(self) -> bool:
        """Both directions are planned, and at once."""
        policies = set(self._policies.values())
        return self._ahead and policies == {"ibatch"} and len(self._profiled) == len(self._policies)

    def _begin_trial(self, seconds: float, is_first: bool) -> None:
        """``seconds``: of an iteration before the plan; the first plan comes after one batch, others after earlier trials."""
        before = "whole" if is_first else self._trial and self._trial.current
        known = {before: seconds} if before in _PLAIN else {}
        is_layerwise = all(len(batches) == len(self._model.layers) for batches in self._batches())
        self._trial = Trial("ibatch", [] if is_layerwise or "layerwise" in known else ["layerwise"], known)

    def _try_on(self, seconds: float) -> tuple[Batches, Batches] | None:
        """The current batches took so long; those that come next."""
        assert self._trial is not None
        before = self._trial.current
        self._trial.took(seconds)
        made = None if self._trial.current == before else self._plan_together(self._trial.current)
        if self._trial.is_over:
            for plan in self.plans.values():
                plan["tried"] = self._trial.seconds
        return made

    def _plan_both(self) -> tuple[Batches, Batches]:
        if self._shares_the_network:
            return self._plan_together("ibatch")
        return self._plan("pull"), self._plan("push")

    def _plan_together(self, name: str) -> tuple[Batches, Batches]:
        """``name``: ibatch, or one of _PLAIN."""
        profiles = {direction: self._profile(direction) for direction in self._policies}
        fixed: dict[str, Any] = {}
        if name in _PLAIN:
            layers = len(self._model.layers)
            size = _PLAIN[name](layers)
            fixed = {"batches": [[first, first + size - 1] for first in range(1, layers + 1, size)]}
        plans = self._ask(**{direction: profile | fixed for direction, profile in profiles.items()})
        for direction, profile in profiles.items():
            plan = {key: plans[direction][key] for key in ("batches", "predicted_seconds", "optimal_ratio")}
            plan |= {"iteration_seconds": plans["iteration_seconds"], "profile": profile}
            self.plans[direction] = {"policy": self._policies[direction], **plan}
        return Batches(self.plans["pull"]["batches"]), Batches(self.plans["push"]["batches"])

    def _plan(self, direction: str) -> Batches:
        policy = self._policies[direction]
        known = self._profiled.get(direction)
        if known is None and policy.partition(":")[0] not in _BLIND:
            policy = "whole"
        profile = self._profile(direction)
        plan = self._ask(policy=policy, direction=direction, **profile)
        self.plans[direction] = {"policy": policy, "batches": plan["batches"]}
        if known:
            measured = {name: plan[name] for name in ("predicted_seconds", "optimal_ratio")}
            self.plans[direction].update(measured, profile=profile)
        return Batches(plan["batches"])

    def _sizes(self) -> list[int]:
        return [layer.count * _BYTES[self._conf.ps_wire] for layer in self._model.layers]

    def _profile(self, direction: str) -> dict[str, Any]:
        """As the planner takes it; zeros if nothing was measured."""
        sizes, known = self._sizes(), self._profiled.get(direction)
        received = (self._gang.world - 1) / self._gang.world
        return {
            "startup": known.startup if known else 0.0,
            "transfer": [size * received * (known.per_byte if known else 0.0) for size in sizes],
            "compute": known.compute if known else [0.0] * len(sizes),
            "bytes": sizes,
            "notice_bytes": self._fetch_above * self._gang.world,
        }
