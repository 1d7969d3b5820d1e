"""Which buckets the layers travel in, and when they are planned anew from what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.layer_buckets import LayerBuckets
from sparkdl_comm.strategies.ps.autotuner import Autotuner
from sparkdl_comm.strategies.ps.profiler import DirectionProfile, Profiler, agree, agreed_seconds, drift
from sparkdl_comm.strategies.ps.pushes import sparse_bytes

#: Policies that group layers without knowing how long anything takes.
_BLIND = ("whole", "layerwise", "fixed")

#: Baselines of a joint ``ibatch`` plan: by policy, the layers per bucket, given the number of layers.
_PLAIN: dict[str, Callable[[int], int]] = {"whole": lambda layers: layers, "layerwise": lambda layers: 1}

#: Bytes of an element on the wire.
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

#: Once there is a plan, the profile is looked at again after this many times ``profileIterations``.
_LOOK_AGAIN = 10

Planner = Callable[..., dict[str, Any]]


def policies(conf: CommConf) -> dict[str, str]:
    """The policy of each direction."""
    pushes = "whole" if conf.ps_batching == "paper" else conf.ps_batching
    return {"pull": conf.ps_batching, "push": conf.ps_push_batching or pushes}


class AdaptiveBuckets:
    """The buckets of one rank; all ranks have the same ones in the same step.

    A policy that needs a profile begins with one bucket for everything, and plans after ``ps.profileIterations`` steps.
    Where pulls go on while gradients are pushed, ``ibatch`` plans both together, and an autotuner tries that plan for as
    many steps more, then ``layerwise`` for as many again, and stays with what was the fastest.

    ``pulls``, ``pushes``: the first buckets. ``plans``: the last plan of each direction, for the run's summary. It has
    ``policy``, ``batches`` (see :class:`~sparkdl_comm.strategies.ps.planner.Bucketing`) and, if it was made from a
    profile, ``predicted_seconds``, ``optimal_ratio`` and the ``profile``, as ``sparkdl-comm plan`` takes it; if both
    directions were planned together, the predicted ``iteration_seconds``, and after the autotuning ``tried``, measured
    seconds of an iteration by what was tried. ``profiler``: takes measurements; None if no policy needs them.
    """

    def __init__(
        self, conf: CommConf, model: FlatModel, gang: Gang, planner: Planner, *, ahead: bool, inline_threshold: int
    ) -> None:
        """``planner(**request)``: asks the executor's planner, see PlanRequest.scala. ``ahead``: whether parameters are
        pulled while gradients are still pushed. ``inline_threshold``: a block of up to so many bytes travels inside of
        its notice."""
        self._conf, self._model, self._gang, self._ask = conf, model, gang, planner
        self._ahead, self._inline_threshold = ahead, inline_threshold
        self._policies = policies(conf)
        self._profiled: dict[str, DirectionProfile] = {}
        self._autotuner: Autotuner | None = None
        self.plans: dict[str, dict[str, Any]] = {}
        self.pulls, self.pushes = self._plan_both()
        self.profiler: Profiler | None = None
        blind = [policy.partition(":")[0] in _BLIND for policy in self._policies.values()]
        if not all(blind) and gang.world > 1:
            self.profiler = Profiler(len(model.layers), conf.ps_profile_iterations)

    def report(self) -> dict[str, dict[str, Any]]:
        """The last plan of each direction, with the policy that was ``asked`` for, and the ``outcome`` of that."""
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
        if self._autotuner is None:
            return "used"
        if not self._autotuner.is_over:
            return f"used: on trial when the run ended, {self._autotuner.current} in use"
        chosen = self._autotuner.current
        return "tried, and used" if chosen == policy else f"tried, and rejected: {chosen} was faster"

    def due(self, step: int) -> bool:
        """Whether all ranks look at the profile after this step, counted from 1. The first one is not measured."""
        if self.profiler is None:
            return False
        looks, rest = divmod(step - 1, self._conf.ps_profile_iterations)
        return rest == 0 and (looks == 1 or (looks > 1 and (self._is_tuning or looks % _LOOK_AGAIN == 1)))

    def replan(self) -> tuple[LayerBuckets, LayerBuckets] | None:
        """Buckets for pulls and pushes, after the ranks agreed on what they measured; None if they stay as they are.

        All ranks call it in the same step. Takes two trips to rank 0, and two more for each plan.
        """
        assert self.profiler is not None, "nothing is due"
        own = json.dumps(self.profiler.report()).encode()
        reports = [json.loads(report) for report in self._gang.all_gather(own, self._conf.timeout)]
        seconds = agreed_seconds(reports)
        if self._is_tuning and seconds is not None:
            return self._tune(seconds)
        is_first, changed = not self._profiled, False
        for name in self._policies:
            now = agree(reports, name)
            before = self._profiled.get(name)
            if now is not None and (before is None or drift(before, now) > self._conf.ps_replan_drift):
                self._profiled[name] = now
                changed = True
        if not changed:
            return None
        used = self._pairs()
        made = self._plan_both()
        if self._shares_the_network and seconds is not None and (is_first or self._pairs() != used):
            self._begin_autotuning(seconds, is_first)
        return made

    def _pairs(self) -> list[list[list[int]]]:
        return [plan["batches"] for plan in self.plans.values()]

    @property
    def _is_tuning(self) -> bool:
        return self._autotuner is not None and not self._autotuner.is_over

    @property
    def _shares_the_network(self) -> bool:
        """Whether both directions are planned from profiles, and travel at the same time."""
        policies = set(self._policies.values())
        return self._ahead and policies == {"ibatch"} and len(self._profiled) == len(self._policies)

    def _begin_autotuning(self, seconds: float, is_first: bool) -> None:
        """``seconds``: of an iteration before the plan; before the first plan there was one bucket, before others what
        was chosen."""
        before = "whole" if is_first else self._autotuner and self._autotuner.current
        known = {before: seconds} if before in _PLAIN else {}
        is_layerwise = all(len(pairs) == len(self._model.layers) for pairs in self._pairs())
        self._autotuner = Autotuner("ibatch", [] if is_layerwise or "layerwise" in known else ["layerwise"], known)

    def _tune(self, seconds: float) -> tuple[LayerBuckets, LayerBuckets] | None:
        """Buckets for the next steps, after an iteration with the current ones took so long; None if they stay as they
        are."""
        assert self._autotuner is not None
        before = self._autotuner.current
        self._autotuner.took(seconds)
        made = None if self._autotuner.current == before else self._plan_together(self._autotuner.current)
        if self._autotuner.is_over:
            for plan in self.plans.values():
                plan["tried"] = self._autotuner.seconds
        return made

    def _plan_both(self) -> tuple[LayerBuckets, LayerBuckets]:
        if self._shares_the_network:
            return self._plan_together("ibatch")
        return self._plan("pull"), self._plan("push")

    def _plan_together(self, name: str) -> tuple[LayerBuckets, LayerBuckets]:
        """``name``: ibatch, or one of _PLAIN."""
        profiles = {direction: self._profile(direction) for direction in self._policies}
        fixed: dict[str, Any] = {}
        if name in _PLAIN:
            layers = len(self._model.layers)
            size = _PLAIN[name](layers)
            fixed = {"batches": [[first, first + size - 1] for first in range(1, layers + 1, size)]}
        plans = self._planned(**{direction: profile | fixed for direction, profile in profiles.items()})
        for direction, profile in profiles.items():
            plan = {key: plans[direction][key] for key in ("batches", "predicted_seconds", "optimal_ratio")}
            plan |= {"iteration_seconds": plans["iteration_seconds"], "profile": profile}
            self.plans[direction] = {"policy": self._policies[direction], **plan}
        return LayerBuckets(self.plans["pull"]["batches"]), LayerBuckets(self.plans["push"]["batches"])

    def _plan(self, direction: str) -> LayerBuckets:
        policy = self._policies[direction]
        known = self._profiled.get(direction)
        if known is None and policy.partition(":")[0] not in _BLIND:
            policy = "whole"
        profile = self._profile(direction)
        ask = self._planned if known else self._ask  # nobody waits for the others to cut without a profile
        plan = ask(policy=policy, direction=direction, **profile)
        self.plans[direction] = {"policy": policy, "batches": plan["batches"]}
        if known:
            measured = {name: plan[name] for name in ("predicted_seconds", "optimal_ratio")}
            self.plans[direction].update(measured, profile=profile)
        return LayerBuckets(plan["batches"])

    def _planned(self, **request: Any) -> dict[str, Any]:
        """What rank 0's executor answers: a plan of many layers keeps a core busy, which the others may share."""
        own = json.dumps(self._ask(**request)).encode() if self._gang.rank == 0 else b""
        answer: dict[str, Any] = json.loads(self._gang.all_gather(own, self._conf.timeout)[0])
        return answer

    def _sizes(self, direction: str) -> list[int]:
        if direction == "push" and self._conf.compression is not None:
            return [sparse_bytes(layer.count, self._conf.compression.density) for layer in self._model.layers]
        return [layer.count * _BYTES[self._conf.ps_wire] for layer in self._model.layers]

    def _profile(self, direction: str) -> dict[str, Any]:
        """As the planner takes it; zeros if nothing was measured."""
        sizes, known = self._sizes(direction), self._profiled.get(direction)
        received = (self._gang.world - 1) / self._gang.world
        more: dict[str, Any] = {"in_turn": True} if self._policies[direction] == "paper" else {}
        if known and known.gap is not None:
            more["gap"] = known.gap
        for name in ("sum", "update"):
            if known and (seconds := getattr(known, name)):
                more[name] = [seconds * size / sum(sizes) for size in sizes]
        return {
            **more,
            "startup": known.startup if known else 0.0,
            "transfer": [size * received * (known.per_byte if known else 0.0) for size in sizes],
            "compute": known.compute if known else [0.0] * len(sizes),
            "bytes": sizes,
            "notice_bytes": self._inline_threshold * self._gang.world,
        }
