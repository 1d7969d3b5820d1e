"""The autotuner of buckets: what the planner predicts is tried out, and kept only if nothing plainer is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: The share by which something must be faster than the planned buckets to be taken instead: less is chance.
_MARGIN = 0.02


class Autotuner:
    """Candidates are used for some iterations each: the ``planned`` bucketing first, then the ``others``; then the
    fastest stays.

    Bucketings go by name. ``current``: the one in use now. ``seconds``: what an iteration took with each that was tried
    so far, and with those that are ``known`` from before. ``is_over``: ``current`` is what was chosen.
    """

    def __init__(self, planned: str, others: Sequence[str], known: Mapping[str, float]) -> None:
        self._planned = planned
        self._waiting = list(others)
        self.current = planned
        self.seconds = dict(known)
        self.is_over = False

    def took(self, seconds: float) -> None:
        """Notes what an iteration takes with the current one, and goes on to the next, or at last to the fastest."""
        self.seconds[self.current] = seconds
        self.is_over = not self._waiting
        if self._waiting:
            self.current = self._waiting.pop(0)
            return
        fastest = min(self.seconds, key=lambda name: self.seconds[name])
        is_faster = self.seconds[fastest] < (1 - _MARGIN) * self.seconds[self._planned]
        self.current = fastest if is_faster else self._planned
