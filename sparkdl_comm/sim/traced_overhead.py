"""Overhead of the parameter server's path through the JVMs in a fit, from the spans of its timeline.

When the last rank has done its part, a wait is needed only for bytes in transit and for sums. The rest of a wait is
overhead: notices, requests and threads that are woken.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkdl_comm.sim.server_run import Overhead

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
