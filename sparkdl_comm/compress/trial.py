"""Whether steps are faster with sparse gradients than with dense ones, found out by trying both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

Kind = Literal["dense", "sparse"]

#: Steps of each kind that are measured; the first ones are not, which connect, and touch their memory for the first time.
_MEASURED, _UNMEASURED = 5, 1

#: The share by which sparse steps must be faster to be taken: less is chance, and dense ones are exact.
_MARGIN = 0.02


class Trial:
    """Of one density: steps are dense and sparse in turn, until all ranks choose. Kinds go by name.

    ``chosen``: the kind of all further steps; None before :meth:`choose`.
    """

    def __init__(self) -> None:
        self._seconds: dict[Kind, list[float]] = {"dense": [], "sparse": []}
        self.chosen: Kind | None = None
        #: By kind, what a step was found to take; empty before :meth:`choose`.
        self.seconds: dict[Kind, float] = {}

    @property
    def kind(self) -> Kind:
        """Of the step that is next, or under way."""
        if self.chosen is not None:
            return self.chosen
        return min(self._seconds, key=lambda kind: len(self._seconds[kind]))

    @property
    def is_due(self) -> bool:
        """Whether all ranks are to choose now."""
        return self.chosen is None and min(map(len, self._seconds.values())) == _UNMEASURED + _MEASURED

    def took(self, seconds: float) -> None:
        """Notes what the step took."""
        if self.chosen is None:
            self._seconds[self.kind].append(seconds)

    def measured(self) -> dict[Kind, float]:
        """This rank's median by kind."""
        return {kind: median(taken[_UNMEASURED:]) for kind, taken in self._seconds.items()}

    def choose(self, of_ranks: Sequence[Mapping[Kind, float]]) -> None:
        """``of_ranks``: what each rank :meth:`measured`. The slowest one's count, since all others wait for it."""
        self.seconds = {kind: max(seconds[kind] for seconds in of_ranks) for kind in self._seconds}
        self.chosen = "sparse" if self.seconds["sparse"] < (1 - _MARGIN) * self.seconds["dense"] else "dense"
