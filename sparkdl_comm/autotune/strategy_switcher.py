"""Switch from one strategy to the next in one gang and with one model, between two steps of training.

1. The old strategy finishes: all parameters are on all ranks.
2. If ranks updated parts of the parameters, their optimizer state is all-reduced (``optim/shard.py``).
3. The old strategy is closed and the model gets its own memory back. The new strategy joins the same gang with the same model.
4. The new optimizer gets the old state, and the options of its groups, which a scheduler may have changed.

Parameters and optimizer state keep their bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import AUTO
from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim import elementwise
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.optim.shard import WholeState
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import Stopwatch, Strategy
from sparkdl_comm.strategies.collective import CollectiveStrategy
from sparkdl_comm.strategies.registry import load_strategy

if TYPE_CHECKING:
    from sparkdl_comm.strategies.trace import Trace


class OptimizerProxy(torch.optim.Optimizer):
    """Optimizer proxy that shares the groups of the current optimizer, so that the scheduler's changes take effect
    there.
    """

    def __init__(self) -> None:
        super().__init__([torch.nn.Parameter(torch.empty(0))], {})

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Share the groups of ``optimizer`` from now on. Call it again after ``optimizer`` has loaded a state."""
        self.param_groups, self.defaults = optimizer.param_groups, optimizer.defaults

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing: torch's schedulers expect this call before their own step."""


class StrategySwitcher:
    """Switcher from one strategy to the next. Each rank has one instance.

    All ranks call the same methods in the same order. Only :meth:`abort` may be called at any time, from any thread.

    ``optimizer``: proxy of the current strategy's optimizer. ``why_not_striped``: why the optimizer cannot update stripes of
    parameters; None if it can.
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
        """:param group: collectives over all ranks, which move optimizer state from one strategy to the next."""
        self._attempt, self._gang, self._model, self._make_optimizer = attempt, gang, model, make_optimizer
        self._group, self._timeout = group, timeout
        self.optimizer = OptimizerProxy()
        self.why_not_striped = _check_stripes(model, make_optimizer)
        self._current: Strategy | None = None
        self._next_number = 0
        self._is_aborted = False

    @property
    def current(self) -> Strategy:
        assert self._current is not None, "a strategy joins first"
        return self._current

    def switch_to(
        self, conf: CommConf, watch: Stopwatch, trace: Trace | None, parts: Sequence[tuple[int, int]] | None = None
    ) -> None:
        """Let the strategy of ``conf`` join. If another one has joined already, end it and take over its state.

        :param parts: buckets of a collective strategy (:attr:`CollectiveStrategy.parts`).
        """
        state = None if self._current is None else self._end_strategy(self._current)
        self._join_strategy(conf, watch, trace, parts, self._model, self._make_optimizer)
        self.optimizer.follow(self.current.optimizer)
        if state is not None:
            self._restore_optimizer(state)

    @contextlib.contextmanager
    def probe_strategy(self, conf: CommConf, model: FlatModel, make_optimizer: OptimizerMaker) -> Iterator[Strategy]:
        """Yield a strategy of ``conf`` for a measurement with its own model. Only before any other strategy has joined.

        At the end the model has separate memory again, so that the strategy's memory can be freed.
        """
        try:
            self._join_strategy(conf, Stopwatch(), None, None, model, make_optimizer)
            yield self.current
            self.current.finish()
        finally:
            self.close()
            self._current = None
            model.release()

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer state for a checkpoint: of this rank's part if the strategy is sharded."""
        strategy = self.current
        if self.why_not_striped is not None:
            return {"whole": strategy.optimizer.state_dict()}
        stripes = strategy.stripes()
        part = WholeState.of(self._model, stripes, strategy.optimizer)
        return {"sharded": strategy.is_sharded, "part": part.to_checkpoint(stripes)}

    def load_optimizer_state(self, stored: dict[str, Any]) -> None:
        """Load what :meth:`optimizer_state` returned, before the first step, into any strategy. All ranks call it.

        :raises ConfError: the state has another format.
        """
        if ("part" in stored) != (self.why_not_striped is None):
            raise ConfError(
                f"the checkpoint's optimizer state was not written by strategy {AUTO} or {PREFIX}collective.batching=ibatch"
                " of this version. Set collective.batching as it was then, or train from the beginning."
            )
        if self.why_not_striped is not None:
            self._restore_optimizer(stored["whole"])
            return
        part = WholeState.from_checkpoint(self._model, stored["part"])
        self._restore_optimizer(self._gather_state(part) if stored["sharded"] else part)

    def abort(self) -> None:
        """Abort the current strategy. See :meth:`Strategy.abort`."""
        self._is_aborted = True
        if self._current is not None:
            self._current.abort()

    def close(self) -> None:
        if self._current is not None:
            self._current.close()

    def _join_strategy(
        self,
        conf: CommConf,
        watch: Stopwatch,
        trace: Trace | None,
        parts: Sequence[tuple[int, int]] | None,
        model: FlatModel,
        make_optimizer: OptimizerMaker,
    ) -> None:
        gang, kind = self._gang, load_strategy(conf)
        self._current = strategy = kind(conf)
        if isinstance(strategy, CollectiveStrategy):
            strategy.parts = parts
        strategy.number, self._next_number = self._next_number, self._next_number + 1
        strategy.watch, strategy.trace = watch, trace
        if self._is_aborted:
            strategy.abort()
        if kind.needs_plugin:
            advertised = gather_json(gang, strategy.advertise(self._attempt, gang.rank), self._timeout)
            gang.members = tuple(
                replace(member, payload={**member.payload, "strategy": theirs})
                for member, theirs in zip(gang.members, advertised, strict=True)
            )
        strategy.join(gang, model, make_optimizer)

    def _end_strategy(self, old: Strategy) -> dict[str, Any] | WholeState:
        """End the strategy ``old``, and return its optimizer state."""
        model = self._model
        old.finish()
        state: dict[str, Any] | WholeState = old.optimizer.state_dict()
        if self.why_not_striped is None:
            part = WholeState.of(model, old.stripes(), old.optimizer)
            state = self._gather_state(part) if old.is_sharded else part
        exact = None
        if old.has_rounded_parameters:
            exact = model.values.new_full((model.count,), -0.0)
            for start, values in old.owned():
                exact[start : start + len(values)] = values
            self._sum(exact)
        old.close()
        model.release()
        if exact is not None:
            model.load(0, exact)
        return state

    def _restore_optimizer(self, state: dict[str, Any] | WholeState) -> None:
        """Load ``state`` into the current strategy's optimizer."""
        strategy = self.current
        if isinstance(state, WholeState):
            state.load_into(self._model, strategy.stripes(), strategy.optimizer)
        else:
            strategy.optimizer.load_state_dict(state)
        self.optimizer.follow(strategy.optimizer)

    def _gather_state(self, part: WholeState) -> WholeState:
        return part.gather(self._gang, self._model, self._sum, self._timeout)

    def _sum(self, vector: torch.Tensor) -> None:
        self._group.start("all_reduce", vector).wait()


def _check_stripes(model: FlatModel, make_optimizer: OptimizerMaker) -> str | None:
    try:
        elementwise.check(model, make_optimizer)
    except ModelError as error:
        return error.message
    optimizer = make_optimizer([(parameter, parameter) for parameter in model.parameters])
    return "the model has an Embedding with sparse=True" if make_optimizer.needs_sparse(optimizer) else None
