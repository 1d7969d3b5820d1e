"""In which buckets the gradients and parameters of a decoupled collective should travel: cut by iBatch's planner.

The planner (``ps/planner.py``) cuts each direction of a network alone: parameters before forward computes with them, gradients
after backward has made them. Here a rank owns a part of each bucket, so both directions have the same buckets. Those are taken
of all that the planner makes, and of equal parts, with which a step is predicted to take least; where a few more would gain no
more than chance, the fewest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparkdl_comm.sim.server_run import equal_cuts
from sparkdl_comm.space.parameter_space import ParameterSpace
from sparkdl_comm.strategies.candidates import Candidate, Computing, Predictor, by_layer
from sparkdl_comm.strategies.choice import MARGIN
from sparkdl_comm.strategies.ps.planner import Bucketing, plan_buckets

Parts = tuple[tuple[int, int], ...]
#: The paper's two algorithms, the exact plan, and what needs none.
_POLICIES = ("greedy1", "greedy2", "optimal", "whole", "layerwise")
#: What all elements take, and so many times fewer, tells a start-up and seconds for each element.
_MORE = 16


def planned(
    predictor: Predictor,
    candidate: Candidate,
    computing: Computing,
    plan: Callable[[Sequence[Mapping[str, Any]]], Sequence[Bucketing]] = plan_buckets,
) -> Candidate:
    """The candidate with the fewest buckets of those with which a step is predicted to take what the best do, but for chance.

    :raises PluginError, DeadlineError: as of :func:`~.ps.planner.plan_buckets`.
    """
    space = predictor.space
    sizes = [layer.count for layer in space.layers]
    profiles = [
        (direction, *_linear(taken, sizes), compute)
        for direction, taken, compute in zip(
            ("push", "pull"),
            predictor.halves(candidate.conf, [max(1, space.count // _MORE), space.count]),
            reversed(by_layer(space, computing)),
            strict=True,
        )
    ]
    requests = [
        {"startup": startup, "transfer": transfer, "compute": compute, "policy": policy, "direction": direction}
        for direction, startup, transfer, compute in profiles
        for policy in _POLICIES
    ]
    cuts = [sorted((first - 1, last - 1) for first, last in answer.batches) for answer in plan(requests)]
    found = dict.fromkeys(_parts(space, cut) for cut in [*cuts, *equal_cuts(sizes)])
    made = [replace(candidate, parts=parts) for parts in found]
    taken = [predictor.seconds(each, computing) for each in made]
    near = [parts for parts, seconds in zip(found, taken, strict=True) if seconds <= (1 + MARGIN) * min(taken)]
    return replace(candidate, parts=min(near, key=len))


def _linear(taken: Sequence[float], sizes: Sequence[int]) -> tuple[float, list[float]]:
    """A start-up, and what each of the layers of so many elements takes beside it: by what a few elements, and all, take."""
    few, whole = taken
    startup = min(whole, max(0.0, few - (whole - few) / (_MORE - 1)))
    each = (whole - startup) / sum(sizes)
    return startup, [each * size for size in sizes]


def _parts(space: ParameterSpace, cut: Sequence[tuple[int, int]]) -> Parts:
    """Of batches of layers, from 0, in the order of the layers."""
    stretches = [space.stretch(range(first, last + 1)) for first, last in reversed(cut)]
    return tuple((stretch.start, stretch.stop) for stretch in stretches)
