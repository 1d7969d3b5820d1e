"""One strategy after another, in one gang and with one model, between two steps of training:

1. the one before finishes: all parameters are on all ranks;
2. where ranks updated parts of them, what their optimizers keep is all-reduced (``optim/whole_state.py``);
3. it is closed, and the model's memory is its own; the next one joins the same gang with the same model;
4. its optimizer goes on from what was kept, with the groups' options as a scheduler has left them.

Parameters, and what optimizers keep, are the same bits before and after. But where ranks had no steps in common, and each an
optimizer of its own, all go on with what rank 0's keeps. Their updates are multiplied by 1/world: then as many as there are
ranks change the model about as much as a step of other strategies, whose gradient is the mean over all ranks' rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from sparkdl_comm.collectives.group import AUTO, CollectiveGroup
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim import elementwise
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.optim.stand_in import StandIn
from sparkdl_comm.optim.whole_state import WholeState
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.asynchronous import Asynchronous
from sparkdl_comm.strategies.base import STRATEGIES, Stopwatch, Strategy
from sparkdl_comm.strategies.collective import CollectiveStrategy
from sparkdl_comm.strategies.trace import Trace


class Succession:
    """One rank's. All ranks call the same methods in the same order, but for :meth:`abort`, which may come from any thread.

    ``optimizer``: stands for that of whichever strategy is the current one. ``unstriped``: why the optimizer cannot update
    stripes of parameters; None: it can.
    """

    def __init__(
        self,
        attempt: str,
        gang: Gang,
        model: FlatModel,
        make_optimizer: OptimizerMaker,
        group: CollectiveGroup,
        timeout: float,
    ) -> None:
        """``group``: of all ranks, for what optimizers keep."""
        self._attempt, self._gang, self._model, self._make_optimizer = attempt, gang, model, make_optimizer
        self._group, self._timeout = group, timeout
        self.optimizer = StandIn()
        self.unstriped = _unstriped(model, make_optimizer)
        self._current: Strategy | None = None
        self._number = 0
        self._is_aborted = False

    @property
    def current(self) -> Strategy:
        assert self._current is not None, "a strategy joins first"
        return self._current

    def take(
        self, conf: CommConf, watch: Stopwatch, trace: Trace | None, parts: Sequence[tuple[int, int]] | None = None
    ) -> None:
        """The strategy of ``conf`` joins. If there is one already, it goes on from where that one ends.

        :param parts: that of a collective's instance.
        """
        kept = None if self._current is None else self._end(self._current)
        self._join(conf, watch, trace, parts, self._model, self._make_optimizer)
        self.optimizer.stand_for(self.current.optimizer)
        if kept is not None:
            self._give(kept)

    @contextlib.contextmanager
    def aside(self, conf: CommConf, model: FlatModel, make_optimizer: OptimizerMaker) -> Iterator[Strategy]:
        """Around a measurement, before any strategy has joined: one of ``conf`` with a model of its own."""
        self._join(conf, Stopwatch(), None, None, model, make_optimizer)
        yield self.current
        self.current.finish()
        self.current.close()
        self._current = None

    def stored(self) -> dict[str, Any]:
        """What the optimizer keeps, for a checkpoint: of this rank's part where the strategy is sharded."""
        strategy = self.current
        if self.unstriped is not None:
            return {"whole": strategy.optimizer.state_dict()}
        stripes = strategy.stripes()
        part = WholeState.of(self._model, stripes, strategy.optimizer)
        return {"sharded": strategy.sharded, "part": part.stored(stripes)}

    def load(self, stored: dict[str, Any]) -> None:
        """What :meth:`stored` returned, on all ranks; before the first step, whichever strategy has joined.

        :raises ConfError: it is something else.
        """
        if ("part" in stored) != (self.unstriped is None):
            raise ConfError(
                f"neither strategy {AUTO} nor {PREFIX}collective.batching=ibatch writes an optimizer's state as this"
                " checkpoint has it: an earlier version did, or collective.batching was another one"
            )
        if self.unstriped is not None:
            self._give(stored["whole"])
            return
        part = WholeState.from_stored(self._model, stored["part"])
        self._give(self._gathered(part) if stored["sharded"] else part)

    def abort(self) -> None:
        """As :meth:`Strategy.abort`."""
        self._is_aborted = True
        if self._current is not None:
            self._current.abort()

    def close(self) -> None:
        if self._current is not None:
            self._current.close()

    def _join(
        self,
        conf: CommConf,
        watch: Stopwatch,
        trace: Trace | None,
        parts: Sequence[tuple[int, int]] | None,
        model: FlatModel,
        make_optimizer: OptimizerMaker,
    ) -> None:
        gang, kind = self._gang, STRATEGIES[conf.strategy](conf)
        self._current = strategy = kind(conf)
        if isinstance(strategy, CollectiveStrategy):
            strategy.parts = parts
        strategy.number, self._number = self._number, self._number + 1
        strategy.watch, strategy.trace = watch, trace
        if isinstance(strategy, Asynchronous):
            strategy.weight = 1 / gang.world
        if self._is_aborted:
            strategy.abort()
        if kind.needs_plugin:
            told = gather_json(gang, strategy.advertise(self._attempt, gang.rank), self._timeout)
            gang.members = tuple(
                replace(member, payload={**member.payload, "strategy": theirs})
                for member, theirs in zip(gang.members, told, strict=True)
            )
        strategy.join(gang, model, make_optimizer)

    def _end(self, before: Strategy) -> dict[str, Any] | WholeState:
        """Returns what its optimizer kept."""
        model = self._model
        before.finish()
        kept: dict[str, Any] | WholeState = before.optimizer.state_dict()
        if self.unstriped is None:
            stripes = before.stripes() if before.synchronous or self._gang.rank == 0 else []
            part = WholeState.of(model, stripes, before.optimizer)
            kept = self._gathered(part) if before.sharded or not before.synchronous else part
        exact = None
        if before.rounds:
            exact = model.values.new_full((model.count,), -0.0)
            for start, values in before.owned():
                exact[start : start + len(values)] = values
            self._add(exact)
        before.close()
        model.release()
        if exact is not None:
            model.load(0, exact)
        return kept

    def _give(self, kept: dict[str, Any] | WholeState) -> None:
        """The strategy that has joined begins with this."""
        strategy = self.current
        if isinstance(kept, WholeState):
            kept.give(self._model, strategy.stripes(), strategy.optimizer)
        else:
            strategy.optimizer.load_state_dict(kept)
        self.optimizer.stand_for(strategy.optimizer)

    def _gathered(self, part: WholeState) -> WholeState:
        return part.gathered(self._gang, self._model, self._add, self._timeout)

    def _add(self, vector: torch.Tensor) -> None:
        self._group.start("all_reduce", vector).wait()


def _unstriped(model: FlatModel, make_optimizer: OptimizerMaker) -> str | None:
    try:
        elementwise.check(model, make_optimizer)
    except ModelError as error:
        return error.message
    optimizer = make_optimizer([(parameter, parameter) for parameter in model.parameters])
    return "the model has an Embedding with sparse=True" if make_optimizer.wants_sparse(optimizer) else None
