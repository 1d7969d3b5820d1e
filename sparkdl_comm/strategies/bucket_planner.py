"""Buckets for decoupled collectives, cut by iBatch's planner.

The planner (``jvm/planner.py``) cuts parameters and gradients separately. In a decoupled collective each rank owns a part of
each bucket, so both directions need the same buckets. The candidates are the planner's cuts for both directions, and equal
cuts. The one with the fastest predicted step is taken. Among cuts within :data:`~.choice.MARGIN` of it, the one with the
fewest buckets is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparkdl_comm.jvm.planner import Bucketing, plan_buckets
from sparkdl_comm.sim.server_run import equal_cuts
from sparkdl_comm.space.parameter_space import ParameterSpace
from sparkdl_comm.strategies.candidates import Candidate, StepPredictor, StepTimings, split_by_layer
from sparkdl_comm.strategies.choice import MARGIN

BucketRanges = tuple[tuple[int, int], ...]
#: Policies that are tried: the paper's two algorithms, the exact optimum, and the two trivial cuts.
_POLICIES = ("greedy1", "greedy2", "optimal", "whole", "layerwise")
#: Ratio of the two message sizes whose predicted times give the start-up time and the time per element.
_SIZE_RATIO = 16


def plan_candidate(
    predictor: StepPredictor,
    candidate: Candidate,
    computing: StepTimings,
    plan: Callable[[Sequence[Mapping[str, Any]]], Sequence[Bucketing]] = plan_buckets,
) -> Candidate:
    """Return ``candidate`` with the fewest buckets whose predicted step is within :data:`~.choice.MARGIN` of the fastest.

    :raises PluginError, DeadlineError: see :func:`~.ps.planner.plan_buckets`.
    """
    space = predictor.space
    sizes = [layer.count for layer in space.layers]
    profiles = [
        (direction, *_fit_linear(taken, sizes), compute)
        for direction, taken, compute in zip(
            ("push", "pull"),
            predictor.predict_halves(candidate.conf, [max(1, space.count // _SIZE_RATIO), space.count]),
            reversed(split_by_layer(space, computing)),
            strict=True,
        )
    ]
    requests = [
        {"startup": startup, "transfer": transfer, "compute": compute, "policy": policy, "direction": direction}
        for direction, startup, transfer, compute in profiles
        for policy in _POLICIES
    ]
    cuts = [sorted((first - 1, last - 1) for first, last in answer.batches) for answer in plan(requests)]
    choices = dict.fromkeys(_to_ranges(space, cut) for cut in [*cuts, *equal_cuts(sizes)])
    candidates = [replace(candidate, parts=parts) for parts in choices]
    taken = [predictor.predict(each, computing) for each in candidates]
    near = [parts for parts, seconds in zip(choices, taken, strict=True) if seconds <= (1 + MARGIN) * min(taken)]
    return replace(candidate, parts=min(near, key=len))


def _fit_linear(taken: Sequence[float], sizes: Sequence[int]) -> tuple[float, list[float]]:
    """Return the start-up time and the transfer time of each layer, in seconds.

    ``taken``: seconds of a message with 1/16 of the elements, and with all. ``sizes``: elements of each layer.
    """
    few, whole = taken
    startup = min(whole, max(0.0, few - (whole - few) / (_SIZE_RATIO - 1)))
    each = (whole - startup) / sum(sizes)
    return startup, [each * size for size in sizes]


def _to_ranges(space: ParameterSpace, cut: Sequence[tuple[int, int]]) -> BucketRanges:
    """Return element ranges for ``cut``: (first, last) layer of each bucket, from 0, in the order of the layers."""
    stretches = [space.stretch(range(first, last + 1)) for first, last in reversed(cut)]
    return tuple((stretch.start, stretch.stop) for stretch in stretches)
