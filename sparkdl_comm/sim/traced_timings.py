"""Compute times of a fit's ranks, layer by layer, from the spans of its timeline (``report/timeline.py``)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl_comm.errors import InputError
from sparkdl_comm.sim.server_run import Overhead, TimedLayer

Span = Mapping[str, Any]

#: Name of a wait -> (pass after whose end on all ranks the wait is overhead, how many iterations earlier that pass was,
#: spans of transfers and sums during the wait).
_WAITS = {
    "wait for push": ("backward", 0, ("push batch", "aggregate batch")),
    "wait for pull": ("update", 1, ("pull batch",)),
}


def traced_overhead(spans: Sequence[Span], batches: int) -> Overhead:
    """Return the overhead of a start-up, from the first wait of each kind, and of handling, from the later waits.

    :param spans: spans of a fit with the parameter server.
    :param batches: batches of gradients per iteration.
    """
    ended: dict[tuple[str, int], float] = defaultdict(float)
    of_rank: dict[tuple[str, int, int], list[Span]] = defaultdict(list)
    for span in spans:
        name, iteration = span["name"], span["iteration"]
        ended[name, iteration] = max(ended[name, iteration], span["end"])
        of_rank[name, iteration, span["rank"]].append(span)
    firsts, laters = [], []
    for name, (before, earlier, moving) in _WAITS.items():
        first, later = [], []
        for (kind, iteration, rank), waits in of_rank.items():
            ready = ended.get((before, iteration - earlier))
            if kind != name or ready is None:
                continue
            moves = [span for other in moving for span in of_rank.get((other, iteration, rank), ())]
            idle = [_idle(max(wait["begin"], ready), wait["end"], moves) for wait in waits if wait["end"] > ready]
            first.append(idle[0] if idle else 0.0)
            later.append(sum(idle[1:]))
        firsts.append(statistics.median(first) if first else 0.0)
        laters.append(statistics.median(later) if later else 0.0)
    return Overhead(statistics.fmean(firsts), sum(laters) / batches)


def _idle(begin: float, end: float, moves: Iterable[Span]) -> float:
    """Return the seconds from ``begin`` to ``end`` in which none of ``moves`` is running."""
    idle, now = 0.0, begin
    for move in sorted(moves, key=lambda span: span["begin"]):
        idle += max(0.0, min(move["begin"], end) - now)
        now = max(now, min(move["end"], end))
    return idle + max(0.0, end - now)


#: Overhead of the parameter server if the timeline is of another strategy: the mean of what `auto` measured for two
#: executors on one machine with two cores. The measurements are ``server`` in
#: ``python/benchmarks/scale/results/auto-small-vgg19.json``, which has the command that made them.
ASSUMED = Overhead(startup=0.0017, handling=0.0016)
#: Assumed number of layers if the spans contain none.
_SLICES = 64


@dataclass(frozen=True)
class TracedTimings:
    """Mean compute times over all ranks and iterations.

    :param update: seconds in which one rank would update all parameters. With the parameter server, each rank updates a
        part.
    :param pulls: batches of layers, from 0, that the parameter server pulled. Empty with other strategies.
    :param pushes: batches of layers, from 0, that the parameter server pushed. Empty with other strategies.
    :param handling: additional seconds per batch of gradients.
    :param server: overhead of the parameter server.
    """

    layers: tuple[TimedLayer, ...]
    update: float
    pulls: tuple[tuple[int, int], ...]
    pushes: tuple[tuple[int, int], ...]
    handling: float = 0.0
    server: Overhead = ASSUMED

    @property
    def passes(self) -> float:
        """Seconds of forward and backward."""
        return sum(layer.forward + layer.backward for layer in self.layers)


def timings_from_spans(spans: Sequence[Span], parameter_bytes: int, nbytes: int | None = None) -> TracedTimings:
    """Return the compute times from the spans of a timeline.

    Within a batch all layers count as equal. Without batches, all layers of the network count as equal, and gradients
    are completed evenly during backward.

    :param spans: as :attr:`~sparkdl_comm.report.timeline.Timeline.spans`, in the order in which they began.
    :param parameter_bytes: bytes of the traced model. If ranks pulled its batches, the spans give the bytes of each
        layer.
    :param nbytes: bytes of all parameters to assume instead. None: those of the traced model.
    :raises InputError: there is no forward or no backward pass.
    """
    ranks = len({span["rank"] for span in spans})
    passes = ranks * len({span["iteration"] for span in spans})
    spent = _without_waits(spans)
    for name in ("forward", "backward"):
        if not spent[name]:
            raise InputError(f"the timeline has no span {name!r}: it must be of at least one iteration")
    pulled, pushed = (_batches(spans, name) for name in ("pull batch", "push batch"))
    depth = max((last for batches in (pulled, pushed) for _, last in batches), default=_SLICES)
    forward = _spread(spans, "forward batch", depth, spent["forward"] / passes)
    backward = _spread(spans, "backward batch", depth, spent["backward"] / passes)
    if nbytes is None and pulled and ranks > 1:
        sizes = _sizes(spans, depth, passes, ranks)
    else:
        sizes = [(parameter_bytes if nbytes is None else nbytes) / depth] * depth
    update, handling = spent["update"] / passes, 0.0
    if pushed:
        update = _of_bytes(spans, sizes, update)
        handling = (spent["update"] / passes - update) / len(pushed)
        update *= ranks  # each rank has updated only its part
    return TracedTimings(
        tuple(TimedLayer(*layer) for layer in zip(forward, backward, sizes, strict=True)),
        update,
        tuple((first - 1, last - 1) for first, last in pulled),
        tuple((first - 1, last - 1) for first, last in pushed),
        handling,
        traced_overhead(spans, len(pushed)) if pushed else ASSUMED,
    )


def _without_waits(spans: Iterable[Span]) -> dict[str, float]:
    """Return the seconds of all ranks and iterations by span name, without the waits inside the spans."""
    spent: dict[str, float] = defaultdict(float)
    open_spans: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        if "batch" in span:
            continue
        outer = open_spans[span["rank"]]
        while outer and outer[-1]["end"] <= span["begin"]:
            outer.pop()
        if outer:
            spent[outer[-1]["name"]] -= span["end"] - span["begin"]
        outer.append(span)
        spent[span["name"]] += span["end"] - span["begin"]
    return spent


def _batches(spans: Iterable[Span], name: str) -> list[tuple[int, int]]:
    """Return the batches of the last iteration that has any, in the order of their layers, from 1."""
    found: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for span in spans:
        if span["name"] == name:
            first, last = span["layers"]
            found[span["iteration"]].add((first, last))
    return sorted(found[max(found)]) if found else []


def _spread(spans: Iterable[Span], name: str, depth: int, seconds: float) -> list[float]:
    """Distribute ``seconds`` over the layers, in proportion to the time of their batches; evenly if there are no
    batches.
    """
    weights = [0.0] * depth
    for span in spans:
        if span["name"] == name:
            first, last = span["layers"]
            for layer in range(first - 1, min(last, depth)):
                weights[layer] += (span["end"] - span["begin"]) / (last - first + 1)
    total = sum(weights)
    return [seconds * weight / total for weight in weights] if total else [seconds / depth] * depth


def _of_bytes(spans: Iterable[Span], sizes: Sequence[float], update: float) -> float:
    """Return the part of an iteration's ``update`` seconds that grows with the updated bytes.

    That is all of it, unless the spans have batches of several sizes.
    """
    taken: dict[tuple[int, int], list[float]] = defaultdict(list)
    for span in spans:
        if span["name"] == "update batch":
            first, last = span["layers"]
            taken[first, last].append(span["end"] - span["begin"])
    nbytes = [sum(sizes[first - 1 : last]) for first, last in taken]
    if len(set(nbytes)) < 2:
        return update
    slope, _ = statistics.linear_regression(nbytes, [statistics.median(each) for each in taken.values()])
    return min(update, max(0.0, slope) * sum(sizes))


def _sizes(spans: Iterable[Span], depth: int, passes: int, ranks: int) -> list[float]:
    """Return the bytes of each layer, from the bytes that ranks pulled: all but their own stripes."""
    sizes = [0.0] * depth
    for span in spans:
        if span["name"] == "pull batch":
            first, last = span["layers"]
            for layer in range(first - 1, last):
                sizes[layer] += span["bytes"] / (last - first + 1) / passes * ranks / (ranks - 1)
    return sizes
