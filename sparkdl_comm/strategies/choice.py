"""Which of several strategies a fit stays with: predicted, then tried in real steps, and decided again when steps drift. Pure.

Rank 0 decides for all ranks. What all do between two decisions is a *turn*: so many steps with one candidate, the first of
which are not measured. After each turn the ranks tell rank 0 what its steps took, and hear of the next one:

1. the first candidate takes some steps, by which computing is measured; then all are predicted;
2. of each family of candidates, such as all-reduces, the one that is predicted to be the fastest is tried, the best first, if
   it should be near the fastest that was measured; one that is far behind after a step is given up;
3. the fastest stays, and the one before the trials if none is faster by more than chance;
4. from then on a turn is a window; where its median is far from what was measured in the trial, in either direction, it is
   predicted and tried again;
5. candidates that settle slowly, and were left out for that, are tried when a window is calm, if they are predicted to be
   faster;
6. a candidate without common steps takes whole epochs, in which there are no turns. Where it is predicted to be faster than
   the one that was chosen, by a clear margin, it has the next epoch as its trial; if it is, it has all that follow.

The time that an alarm takes is bounded: each widens the limit of the next one, and calm windows narrow it again. So steps that
drift without end are tried again less and less often, down to once in :data:`CALM` windows for each alarm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

#: Steps after a change that are not measured: they connect, and touch their memory for the first time.
SETTLING = 1
#: Candidates with more of them are tried after all others: at the beginning if none of these is predicted to take just as
#: long, else when a window is calm.
MOST_SETTLING = 3
#: Measured steps: at the beginning, of a candidate at first sight and when it is not given up, and of a window.
BEGINNING, GLIMPSE, MORE, WINDOW = 3, 1, 2, 5
#: Candidates that are tried beside the one that is used: at the beginning, and again, where a change is to be answered soon.
TRIED_FIRST, TRIED_AGAIN = 3, 2
#: By how much a prediction may be over the fastest that was measured, for the candidate to be tried.
NEAR = 0.15
#: By how much a step may be over the fastest candidate's, or it is given up.
BEHIND = 0.25
#: By how much a candidate must be faster than the one before the trials to take its place: less is chance.
MARGIN = 0.03
#: By how much a candidate that takes whole epochs must be faster than the one that was chosen, as predicted, and as measured.
#: Its updates are made from older parameters, so that it needs more of them.
GAIN = 0.15
#: By how much windows may be over or under what was measured: the limit, its growth at an alarm, the calm windows after which
#: it shrinks again.
DRIFT, WIDER, CALM = 0.2, 1.5, 20


class Turn(NamedTuple):
    """``settling`` and then ``steps`` measured steps with a ``candidate``. None at all: whole epochs with it."""

    candidate: str
    settling: int
    steps: int


@dataclass
class Decision:
    """``why`` it was decided at the beginning of ``step`` (from 1), ``predicted`` and ``measured`` seconds of a step by
    candidate, and what was ``chosen``, from step ``since`` on; None: the trials go on."""

    step: int
    why: str
    predicted: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    chosen: str | None = None
    since: int | None = None


class Choice:
    """At rank 0. After each turn :meth:`took` is called; if it returns True, so is :meth:`predicted`. Then :attr:`turn` is the
    next one.

    :param first: the candidate to begin with.
    :param settling: steps of a candidate that are not measured, where they are more than usual.
    :param by_epoch: the candidate that takes whole epochs, if there is one. If it is the first one, it stays.
    """

    def __init__(self, first: str, settling: Mapping[str, int] | None = None, by_epoch: str | None = None) -> None:
        self._settle = dict(settling or {})
        self._by_epoch = by_epoch
        self.turn = Turn(first, 0, 0) if first == by_epoch else Turn(first, self._settling(first) + 1, BEGINNING)
        #: All there were, the last one perhaps without its outcome.
        self.decisions: list[Decision] = []
        self._held = first  # the one to go back to
        self._queue: list[str] = []
        self._late: list[str] = []  # to be tried when a window is calm
        self._seen: list[float] = []  # of the candidate on trial
        self._reference: float | None = None  # what its steps should take; None while there is a trial
        self._limit, self._calm = DRIFT, 0
        self._why = "the beginning"
        self._latest = 0.0
        self._epoch_trial: Decision | None = None

    def took(self, seconds: Sequence[float], step: int) -> bool:
        """The turn is over, and the next step is number ``step``. ``seconds``: of its measured steps.

        Returns whether predictions are wanted: a decision begins.
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
        """What a step of each candidate that there is should take; the one that is used has just been measured. ``families``:
        of candidates of which one is tried, at most; others are each their own."""
        again = bool(self.decisions)
        self.decisions.append(Decision(step, self._why, dict(seconds), {self._held: self._latest}))
        self._reference = None
        best: dict[str, str] = {}  # of each family
        for name in sorted(seconds.keys() - {self._by_epoch}, key=lambda name: seconds[name]):
            best.setdefault((families or {}).get(name, name), name)
        quick = {taken for name, taken in seconds.items() if self._is_quick(name)}
        worth = [name for name in best.values() if name != self._held]
        others = [name for name in worth if self._is_quick(name) or not (again or seconds[name] in quick)]
        self._queue = sorted(others[: TRIED_AGAIN if again else TRIED_FIRST], key=self._is_quick, reverse=True)
        self._late = [name for name in worth if not self._is_quick(name) and name not in self._queue]
        self._next(step)

    def epoch(self, seconds: float, step: int) -> None:
        """An epoch is over, and the next step is number ``step``. ``seconds``: that it took for as many rows as a step has.

        With the candidate that takes whole epochs, the turn has no steps.
        """
        name, trial = self._by_epoch, self._epoch_trial
        if name is None:
            return
        if self.turn.candidate == name:
            if trial is not None and trial.chosen is None:
                trial.measured[name], trial.since = seconds, step
                trial.chosen = name if seconds < (1 - GAIN) * trial.measured[self._held] else self._held
                self.turn = self.turn if trial.chosen == name else Turn(self._held, SETTLING, WINDOW)
        elif trial is None and self._reference is not None and not self._late:
            predicted = self.decisions[-1].predicted[name]
            if predicted < (1 - GAIN) * self._reference:
                why = f"{name} is predicted to be faster than {self._held} by a clear margin"
                self._epoch_trial = Decision(step, why, {name: predicted}, {self._held: self._reference})
                self.decisions.append(self._epoch_trial)
                self.turn = Turn(name, 0, 0)

    def _next(self, step: int) -> None:
        """The next candidate's trial, or the end of all."""
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
        """Those that may be about as fast as the fastest of the decision so far."""
        told = self.decisions[-1]
        # By what the one before took over what it was predicted to take: one that was predicted too well rules out no others.
        likely = told.measured[self._held] / told.predicted[self._held]
        near = (1 + NEAR) * min(told.measured.values())
        return [name for name in names if told.predicted[name] * likely <= near]

    def _try_late(self, step: int) -> None:
        """A decision among the one that is used and those that settle slowly, by the predictions there are."""
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
        """Whether the window's median is so far from the reference that it is decided again."""
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
