"""Choice between candidate strategies: predictions, trials in real steps, and new trials when step times drift. Pure.

Rank 0 decides for all ranks. Between two decisions the ranks run one *turn*: a few unmeasured steps with one candidate, then
some measured ones. After each turn the ranks report their step times to rank 0, which returns the next turn.

1. The first candidate takes some steps, which measure the compute time. Then all candidates are predicted.
2. Candidates belong to families, such as all-reduces. From each family only the one with the fastest prediction can be tried.
   It is tried, the fastest prediction first, if it should be near the fastest measured step. A candidate that is far behind
   after one step is dropped.
3. The fastest candidate stays. If none beats the incumbent by more than chance, the incumbent stays.
4. From then on each turn is a *window*. If a window's median step time is far from the time measured in the trial, in either
   direction, the candidates are predicted and tried again.
5. Candidates that need many steps to settle may have been left out of the first trials. They are tried after a calm window, if
   they are predicted to be faster.

The time spent on trials is bounded. Each alarm widens the drift limit for the next one, and calm windows narrow it again.
Steps that keep drifting are therefore tried again ever more rarely, down to one alarm in :data:`CALM` windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

#: Unmeasured steps after a change of candidate: they open connections and touch memory for the first time.
SETTLING = 1
#: Candidates with more settling steps than this are slow to settle. They are tried last: in the first trials if no other
#: candidate has the same prediction, otherwise after a calm window.
MOST_SETTLING = 3
#: Measured steps: of the first turn, of a trial at first, of a trial that is continued, and of a window.
BEGINNING, GLIMPSE, MORE, WINDOW = 3, 1, 2, 5
#: Number of candidates tried against the incumbent: at the beginning, and after an alarm, when time matters more.
TRIED_FIRST, TRIED_AGAIN = 3, 2
#: A candidate is tried if its prediction exceeds the fastest measured step by at most this fraction.
NEAR = 0.15
#: A trial is dropped if its step time exceeds the fastest candidate's by more than this fraction.
BEHIND = 0.25
#: Fraction by which a candidate must beat the incumbent to replace it; a smaller difference is chance.
MARGIN = 0.03
#: Fraction by which a window may differ from the measured step time; factor of this limit at each alarm; number of calm
#: windows after which the limit shrinks again.
DRIFT, WIDER, CALM = 0.2, 1.5, 20


class Turn(NamedTuple):
    """Turn of a ``candidate``: ``settling`` unmeasured steps, then ``steps`` measured ones."""

    candidate: str
    settling: int
    steps: int


@dataclass
class Decision:
    """Decision that began before ``step`` (from 1), for the reason ``why``.

    ``predicted`` and ``measured``: seconds of a step, by candidate. ``chosen``: the candidate used from step ``since`` on;
    both are None while trials run.
    """

    step: int
    why: str
    predicted: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    chosen: str | None = None
    since: int | None = None


class Choice:
    """Choice at rank 0.

    Call :meth:`took` after each turn and, if it returns True, :meth:`predicted`. Then :attr:`turn` is the next turn.

    :param first: the candidate to begin with.
    :param settling: number of unmeasured steps of candidates that need more than :data:`SETTLING`.
    """

    def __init__(self, first: str, settling: Mapping[str, int] | None = None) -> None:
        self._settle = dict(settling or {})
        self.turn = Turn(first, self._settling(first) + 1, BEGINNING)
        #: All decisions; the last one may still be open.
        self.decisions: list[Decision] = []
        self._held = first  # the incumbent
        self._queue: list[str] = []
        self._late: list[str] = []  # slow to settle: tried after a calm window
        self._seen: list[float] = []  # measured seconds of the candidate on trial
        self._reference: float | None = None  # seconds of a step of the incumbent; None during trials
        self._limit, self._calm = DRIFT, 0
        self._why = "the beginning"
        self._latest = 0.0

    def took(self, seconds: Sequence[float], step: int) -> bool:
        """Record the turn that has just ended: ``seconds`` of its measured steps. The next step is number ``step``.

        Return True if a new decision begins, for which the caller must call :meth:`predicted`.
        """
        self._latest = median(seconds)
        if self._reference is not None:
            if self._drifted(self._latest, self._reference):
                return True
            self._try_late(step)
            return False
        if not self.decisions:
            return True
        self._seen += seconds
        now, best = median(self._seen), min(self.decisions[-1].measured.values())
        candidate = self.turn.candidate
        if len(self._seen) < GLIMPSE + MORE and now <= (1 + BEHIND) * best:
            self.turn = Turn(candidate, 0, MORE)
            return False
        self.decisions[-1].measured[candidate] = now
        self._next(step)
        return False

    def predicted(self, seconds: Mapping[str, float], step: int, families: Mapping[str, str] | None = None) -> None:
        """Begin a decision with the predicted ``seconds`` of a step of each candidate. The incumbent has just been measured.

        ``families``: the family of each candidate; at most one of a family is tried. A candidate not listed is its own family.
        """
        again = bool(self.decisions)
        self.decisions.append(Decision(step, self._why, dict(seconds), {self._held: self._latest}))
        self._reference = None
        best: dict[str, str] = {}  # by family
        for name in sorted(seconds, key=lambda name: seconds[name]):
            best.setdefault((families or {}).get(name, name), name)
        quick = {taken for name, taken in seconds.items() if self._is_quick(name)}
        worth = [name for name in best.values() if name != self._held]
        others = [name for name in worth if self._is_quick(name) or not (again or seconds[name] in quick)]
        self._queue = sorted(others[: TRIED_AGAIN if again else TRIED_FIRST], key=self._is_quick, reverse=True)
        self._late = [name for name in worth if not self._is_quick(name) and name not in self._queue]
        self._next(step)

    def _next(self, step: int) -> None:
        """Begin the next candidate's trial, or end the decision."""
        self._seen = []
        self._queue = self._near(self._queue)
        if self._queue:
            candidate = self._queue.pop(0)
            self.turn = Turn(candidate, self._settling(candidate), GLIMPSE)
            return
        decision = self.decisions[-1]
        measured = decision.measured
        best = min(measured, key=lambda name: measured[name])
        if measured[best] > (1 - MARGIN) * measured[self._held]:
            best = self._held
        stays = best == self.turn.candidate
        self._held, decision.chosen, decision.since = best, best, step
        self._reference = measured[best]
        self.turn = Turn(best, 0 if stays else SETTLING, WINDOW)

    def _near(self, names: Sequence[str]) -> list[str]:
        """Return the candidates that may be about as fast as the fastest one measured in this decision."""
        told = self.decisions[-1]
        # Scale predictions by the incumbent's measured over predicted time: its own error must not rule out others.
        likely = told.measured[self._held] / told.predicted[self._held]
        near = (1 + NEAR) * min(told.measured.values())
        return [name for name in names if told.predicted[name] * likely <= near]

    def _try_late(self, step: int) -> None:
        """Begin a decision between the incumbent and the candidates that settle slowly, with the last predictions."""
        if not self._late:
            return
        predicted = self.decisions[-1].predicted
        late = [name for name in self._near(self._late) if predicted[name] < predicted[self._held]]
        self._late = []
        if late:
            why = f"trying {' and '.join(late)} takes long, and can be afforded now"
            self.decisions.append(Decision(step, why, predicted, {self._held: self._latest}))
            self._reference, self._queue = None, late
            self._next(step)

    def _drifted(self, now: float, reference: float) -> bool:
        """Return True if the window's median is so far from the reference that a new decision must begin."""
        self.turn = Turn(self._held, 0, WINDOW)
        if max(now, reference) <= (1 + self._limit) * min(now, reference):
            self._calm += 1
            if self._calm >= CALM:
                self._limit, self._calm = max(DRIFT, self._limit / WIDER), 0
            return False
        self._limit, self._calm = self._limit * WIDER, 0
        self._why = f"steps of {self._held} took {now:.4g} s in place of {reference:.4g} s"
        return True

    def _is_quick(self, candidate: str) -> bool:
        return self._settling(candidate) <= MOST_SETTLING

    def _settling(self, candidate: str) -> int:
        return self._settle.get(candidate, SETTLING)
