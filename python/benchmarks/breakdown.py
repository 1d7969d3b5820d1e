"""Parts of an iteration's time, from a rank's trace: time that overlaps with an earlier part is not counted.

As in Fig. 1 of Shaohuai Shi, Xianhao Zhou, Shutao Song and others: "Towards Scalable Distributed Training of Deep
Learning on Public Cloud Clusters", 2021.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl_comm.report.timeline import Timeline

#: Seconds from and to.
Stretch = tuple[float, float]
#: Parts of an iteration, in the order of tables.
PARTS = ("computing", "compression", "communication", "update")


def of_iteration(spans: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds of each part.

    The worker waits for sums of gradients, and in forward for parameters. Compression during these waits is the part
    compression, and the rest of them is communication. Updates during a wait belong to neither.

    :param spans: spans of one rank in one iteration, as in :class:`sparkdl_comm.strategies.trace.Trace`.
    """
    passes, waiting = _named(spans, "forward", "backward"), _named(spans, "wait for push", "wait for pull")
    updating = _named(spans, "update")
    computing = _length(passes) - _length(_common(passes, waiting)) - _length(_common(passes, updating))
    waited = _length(waiting) - _length(_common(waiting, updating))
    compressing = _length(_common(waiting, _named(spans, "compress")))
    return dict(zip(PARTS, (computing, compressing, waited - compressing, _length(updating)), strict=True))


def overlapped(spans: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds in which a rank of `ps` computed while parameters or gradients arrived.

    :param spans: spans of one rank.
    """
    computing, waiting = _named(spans, "forward", "backward", "update"), _named(spans, "wait for push", "wait for pull")
    beside = _common(computing, _named(spans, "pull batch", "push batch"))
    return _length(beside) - _length(_common(beside, waiting))


def phases(timeline: Timeline) -> dict[str, float]:
    """Return the mean seconds of an iteration in each phase. A phase within another one counts once."""
    spent: dict[str, float] = defaultdict(float)
    around: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for span in timeline.spans:
        if "batch" in span:
            continue
        outer, seconds = around[span["rank"]], span["end"] - span["begin"]
        while outer and outer[-1]["end"] <= span["begin"]:
            outer.pop()
        if outer:
            spent[outer[-1]["name"]] -= seconds
        outer.append(span)
        spent[span["name"]] += seconds
    return {name: seconds / len(timeline.iterations) / timeline.world for name, seconds in spent.items()}


def mean_overlapped(timeline: Timeline) -> float:
    """Return the mean seconds of an iteration in which a rank computed while it received something."""
    by_rank = ([span for span in timeline.spans if span["rank"] == rank] for rank in range(timeline.world))
    return sum(map(overlapped, by_rank)) / len(timeline.iterations) / timeline.world


def mean(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean seconds of each part over iterations, or over ranks."""
    found = list(parts)
    return {name: fmean(each[name] for each in found) for name in PARTS}


def _named(spans: Iterable[Mapping[str, Any]], *names: str) -> list[Stretch]:
    """Return the union of all spans with these names, in the order of time."""
    found: list[Stretch] = []
    for begin, end in sorted((span["begin"], span["end"]) for span in spans if span["name"] in names):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _common(some: Sequence[Stretch], others: Sequence[Stretch]) -> list[Stretch]:
    """Return the intersection of two lists of stretches in the order of time."""
    found: list[Stretch] = []
    here = there = 0
    while here < len(some) and there < len(others):
        begin, end = max(some[here][0], others[there][0]), min(some[here][1], others[there][1])
        if begin < end:
            found.append((begin, end))
        if some[here][1] < others[there][1]:
            here += 1
        else:
            there += 1
    return found


def _length(stretches: Iterable[Stretch]) -> float:
    return sum(end - begin for begin, end in stretches)
