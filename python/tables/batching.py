"""The tables of ibatch.md."""

from __future__ import annotations

from collections.abc import Iterator

from tables.data import Data, at_most, beside, seconds, with_theory
from tables.paper import IBATCH_PAPER

Line = tuple[str, ...]


def networks(data: Data) -> Iterator[Line]:
    for name in ("ibatch-networks", "ibatch-delays", "ibatch-real"):
        for ours in data.rows(name, algorithm="ibatch"):
            for index, other_way in enumerate(("whole", "layerwise", "ring", "bml", "ddp", "paper"), 1):
                other = data.row(name, algorithm=other_way, case=ours.case, delay=ours.extra["delay"])
                if other:
                    paper = IBATCH_PAPER.get(ours.case) if name == "ibatch-networks" else None
                    told = f"{paper[0] / paper[index]:.2f} x the throughput" if paper and index < len(paper) else "-"
                    about = f"{ours.case}, start-up + {ours.extra['delay'] * 1e3:g} ms: beside `{other_way}`"
                    gained = f"{other.seconds / ours.seconds:.2f} x: {with_theory(ours)}; {seconds(other)}"
                    yield about, told, gained, beside(ours, other)


def rivals(data: Data) -> Iterator[Line]:
    """`ibatch` beside its bound, and beside ways that overlap too."""
    for file in ("ibatch-rivals", "ibatch-rivals-2"):
        yield from _rivals(data, file)


def _rivals(data: Data, file: str) -> Iterator[Line]:
    for ours in data.rows(file, algorithm="ibatch"):
        about = f"{ours.case}, a pull {ours.extra['pull_seconds'] / ours.extra['forward_seconds']:.2g} x forward"
        yield f"{about}: the bound", f"{ours.theory_seconds:.3g} s", seconds(ours), at_most(ours.ratio or 0.0, 1.10)
        predicted = ours.extra["predicted_seconds"]
        off = max(ours.seconds / predicted, predicted / ours.seconds)
        yield f"{about}: as the planner predicts", f"{predicted:.3g} s", seconds(ours), at_most(off, 1.10)
        for name in ("layerwise", "ring", "ddp"):
            other = data.row(file, algorithm=name, case=ours.case, rate_mbit=ours.rate_mbit)
            if other:
                yield f"{about}: beside `{name}`", seconds(other), seconds(ours), beside(ours, other)
