"""Batches on trial: a plan is a prediction, and is kept only if nothing plainer is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: The share by which something must be faster than the plan to be taken instead: less is chance.
_MARGIN = 0.02


class Trial:
    """The ``planned`` batches and then the ``others``, by name, are each used for some iterations.

    ``current``: those in use now. ``seconds``: what an iteration took with each so far, and those that are ``known`` from
    before. ``is_over``: ``current`` has been chosen.
    """

    def __init__(self, planned: str, others: Sequence[str], known: Mapping[str, float]) -> None:
        self._planned = planned
        self._waiting = list(others)
        self.current = planned
        self.seconds = dict(known)
        self.is_over = False

    def took(self, seconds: float) -> None:
        """An iteration with the current ones; next come others, or at last the fastest."""
        self.seconds[self.current] = seconds
        self.is_over = not self._waiting
        if self._waiting:
            self.current = self._waiting.pop(0)
            return
        fastest = min(self.seconds, key=lambda name: self.seconds[name])
        is_faster = self.seconds[fastest] < (1 - _MARGIN) * self.seconds[self._planned]
        self.current = fastest if is_faster else self._planned
