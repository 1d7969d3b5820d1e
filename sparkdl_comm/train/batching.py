"""Which batches layers travel in, and when they are planned anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sparkdl_comm.conf import CommConf
from sparkdl_comm.train.cut import Batches
from sparkdl_comm.train.flat import FlatModel
from sparkdl_comm.train.gang import Gang
from sparkdl_comm.train.profile import Direction, Profiler, agree, drift

#: Policies that cut without knowing how long anything takes.
_BLIND = ("whole", "layerwise", "fixed")

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
    pulls go on while gradients are pushed, ``ibatch`` plans both together.

    ``pulls``, ``pushes``: the first batches. ``plans``: the last ones by direction, each with ``policy``, ``batches`` (see
    sparkdl_comm.ps.plan.Plan) and, if it was made from a profile, ``predicted_seconds``, ``optimal_ratio`` and the
    ``profile``, as `sparkdl-comm plan` takes it; if both were made together, ``iteration_seconds``, what is predicted of both.
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
        self.plans: dict[str, dict[str, Any]] = {}
        self.pulls, self.pushes = self._plan_both()
        self.profiler: Profiler | None = None
        blind = [policy.partition(":")[0] in _BLIND for policy in self._policies.values()]
        if not all(blind) and gang.world > 1:
            self.profiler = Profiler(len(model.layers), conf.ps_profile_iterations)

    def due(self, step: int) -> bool:
        """Whether all ranks look at the profile after this step, counted from 1. The first one is not measured."""
        if self.profiler is None:
            return False
        looks, rest = divmod(step - 1, self._conf.ps_profile_iterations)
        return rest == 0 and (looks == 1 or (looks > 1 and looks % _LOOK_AGAIN == 1))

    def replan(self) -> tuple[Batches, Batches] | None:
        """Batches for pulls and pushes, after the ranks agreed on what they measured; None if they stay as they are.

        All ranks call it in the same step. Takes two trips to rank 0.
        """
        assert self.profiler is not None, "nothing is due"
        own = json.dumps(self.profiler.report()).encode()
        reports = [json.loads(report) for report in self._gang.all_gather(own, self._conf.timeout)]
        changed = False
        for name in self._policies:
            now = agree(reports, name)
            before = self._profiled.get(name)
            if now is not None and (before is None or drift(before, now) > self._conf.ps_replan_drift):
                self._profiled[name] = now
                changed = True
        return self._plan_both() if changed else None

    def _plan_both(self) -> tuple[Batches, Batches]:
        together = (
            self._ahead and set(self._policies.values()) == {"ibatch"} and len(self._profiled) == len(self._policies)
        )
        if not together:
            return self._plan("pull"), self._plan("push")
        profiles = {name: self._profile(name) for name in self._policies}
        plans = self._ask(**profiles)
        for name, profile in profiles.items():
            plan = {key: plans[name][key] for key in ("batches", "predicted_seconds", "optimal_ratio")}
            plan |= {"iteration_seconds": plans["iteration_seconds"], "profile": profile}
            self.plans[name] = {"policy": self._policies[name], **plan}
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
