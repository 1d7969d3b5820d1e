"""Where the time of an iteration goes, from what a rank traced of it: what overlaps with something before it does not count.

As in Fig. 1 of Shaohuai Shi, Xianhao Zhou, Shutao Song and others: "Towards Scalable Distributed Training of Deep Learning on
Public Cloud Clusters", 2021.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

#: The parts of an iteration, in the order in which they are told.
PARTS = ("computing", "compression", "communication", "update")


def of_iteration(spans: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds by part. Compression is what of it goes on while the worker waits for the sum of the gradients, communication
    the rest of that wait, and what forward waits for parameters. What is updated meanwhile is part of neither.

    :param spans: of one rank in one iteration, as :class:`sparkdl_comm.strategies.trace.Trace` keeps them.
    """

    def named(*names: str) -> list[tuple[float, float]]:
        return [(span["begin"], span["end"]) for span in spans if span["name"] in names]

    passes, waiting, updating = named("forward", "backward"), named("wait for push", "wait for pull"), named("update")
    computing = _length(passes) - _length(_common(passes, waiting)) - _length(_common(passes, updating))
    waited = _length(waiting) - _length(_common(waiting, updating))
    compressing = _length(_common(waiting, named("compress")))
    return dict(zip(PARTS, (computing, compressing, waited - compressing, _length(updating)), strict=True))


def mean(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Of the parts of several iterations, or ranks."""
    told = list(parts)
    return {name: fmean(each[name] for each in told) for name in PARTS}


def _common(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> list[tuple[float, float]]:
    both = [(max(a, c), min(b, d)) for a, b in some for c, d in others]
    return [(begin, end) for begin, end in both if begin < end]


def _length(stretches: list[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in stretches)
