"""What the ranks of a fit computed, layer by layer, as the spans of its timeline tell (``report/timeline.py``)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkdl_comm.errors import InputError
from sparkdl_comm.sim.server_run import Overhead
from sparkdl_comm.sim.traced_overhead import Span, traced_overhead

#: Overhead of the parameter server where the timeline is of another strategy: what `auto` measured for two executors of one
#: machine with two cores, the mean of the two rows of ``python/results/auto-small-vgg19.json`` (commit 66a63f5, 2026-11-28).
#: ``python python/bench_auto.py`` measures it: it is the ``server`` of its rows of auto.
ASSUMED = Overhead(startup=0.0017, handling=0.0016)
#: Layers that a network is taken to have of which the spans tell none.
_SLICES = 64


@dataclass(frozen=True)
class TracedLayer:
    """Seconds of ``forward`` and ``backward``, ``nbytes`` of the parameters."""

    forward: float
    backward: float
    nbytes: float


@dataclass(frozen=True)
class Traced:
    """The mean of all ranks and iterations. ``update``: seconds in which a rank would update all parameters, where those of
    the parameter server update a part each; ``handling``: seconds more for each batch of gradients. ``pulls``, ``pushes``:
    batches of layers, from 0, in which the parameter server moved them; empty with other strategies. ``server``: its
    overhead."""

    layers: tuple[TracedLayer, ...]
    update: float
    pulls: tuple[tuple[int, int], ...]
    pushes: tuple[tuple[int, int], ...]
    handling: float = 0.0
    server: Overhead = ASSUMED

    @property
    def passes(self) -> float:
        """Seconds of forward and backward."""
        return sum(layer.forward + layer.backward for layer in self.layers)


def traced(spans: Sequence[Span], parameter_bytes: int, nbytes: int | None = None) -> Traced:
    """What spans tell. Within a batch all layers are taken to be alike; where no batches are told, all layers of the network,
    and gradients then come evenly during backward.

    :param spans: as :attr:`~sparkdl_comm.report.timeline.Timeline.spans`, in the order in which they began.
    :param parameter_bytes: of the traced model. Where ranks pulled batches of it, these tell how many each layer has.
    :param nbytes: of all parameters, if they are to be others.
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
        update *= ranks  # each has updated its part
    return Traced(
        tuple(TracedLayer(*layer) for layer in zip(forward, backward, sizes, strict=True)),
        update,
        tuple((first - 1, last - 1) for first, last in pulled),
        tuple((first - 1, last - 1) for first, last in pushed),
        handling,
        traced_overhead(spans, len(pushed)) if pushed else ASSUMED,
    )


def _without_waits(spans: Iterable[Span]) -> dict[str, float]:
    """Seconds of all ranks and iterations by name, those of waits within taken off."""
    spent: dict[str, float] = defaultdict(float)
    around: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        if "batch" in span:
            continue
        outer = around[span["rank"]]
        while outer and outer[-1]["end"] <= span["begin"]:
            outer.pop()
        if outer:
            spent[outer[-1]["name"]] -= span["end"] - span["begin"]
        outer.append(span)
        spent[span["name"]] += span["end"] - span["begin"]
    return spent


def _batches(spans: Iterable[Span], name: str) -> list[tuple[int, int]]:
    """Those of the last iteration that has any, in the order of their layers, from 1."""
    found: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for span in spans:
        if span["name"] == name:
            first, last = span["layers"]
            found[span["iteration"]].add((first, last))
    return sorted(found[max(found)]) if found else []


def _spread(spans: Iterable[Span], name: str, depth: int, seconds: float) -> list[float]:
    """``seconds`` over the layers, in proportion to what their batches took; evenly where none are told."""
    weights = [0.0] * depth
    for span in spans:
        if span["name"] == name:
            first, last = span["layers"]
            for layer in range(first - 1, min(last, depth)):
                weights[layer] += (span["end"] - span["begin"]) / (last - first + 1)
    total = sum(weights)
    return [seconds * weight / total for weight in weights] if total else [seconds / depth] * depth


def _of_bytes(spans: Iterable[Span], sizes: Sequence[float], update: float) -> float:
    """What of the ``update`` of an iteration, in seconds, grows with the bytes that are updated: all of it, unless batches of
    several sizes tell."""
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
    """Bytes of each layer, by what ranks have pulled: all but their own stripes."""
    sizes = [0.0] * depth
    for span in spans:
        if span["name"] == "pull batch":
            first, last = span["layers"]
            for layer in range(first - 1, last):
                sizes[layer] += span["bytes"] / (last - first + 1) / passes * ranks / (ranks - 1)
    return sizes
