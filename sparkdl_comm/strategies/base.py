"""Interface of a strategy, which turns the gradients of a step into the next parameters, and bases for two kinds of it."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.layerwise import Layerwise
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.optim.parallel import GangRanks
from sparkdl_comm.space.flat import FlatModel

if TYPE_CHECKING:
    from sparkdl_comm.strategies.trace import Trace

PHASES = ("pull", "forward", "backward", "push", "aggregate", "update")

#: Span names in a trace for the phases in which a rank only waits.
_WAIT_SPANS = {"pull": "wait for pull", "push": "wait for push"}


class Stopwatch:
    """Stopwatch of a rank: seconds in each phase, and bytes received from other ranks.

    Phases are also added to ``trace``, if there is one.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self._trace = trace
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.bytes = {"pull": 0, "push": 0}
        self._nested_seconds = 0.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block as phase ``name``, also if it raises. The outer phase excludes the time of a nested one."""
        outer_seconds, self._nested_seconds = self._nested_seconds, 0.0
        begin = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            if self._trace is not None:
                self._trace.add(_WAIT_SPANS.get(name, name), begin, end)
            seconds = end - begin
            self.seconds[name] += seconds - self._nested_seconds
            self._nested_seconds = outer_seconds + seconds


class StepInfo(NamedTuple):
    """Description of one optimizer step.

    ``step``: its number, from 1, counted through all epochs. ``epoch``: from 1. ``loss_scale``: factor of the step's loss and
    of its gradients, until :class:`~.gradients.GradientRule` divides by it. ``learning_rate``: that of the optimizer's first
    group. ``dense``: True if whole gradients travel, together with all residuals that compression kept before.
    """

    step: int = 1
    epoch: int = 1
    loss_scale: float = 1.0
    learning_rate: float = 1.0
    dense: bool = False


class Strategy(ABC):
    """Strategy of one rank: exchange of gradients and parameters, and the optimizer's update.

    The training loop, the gradient rule and checkpoints read the class attributes :attr:`is_synchronous`,
    :attr:`needs_global_mean` and :attr:`is_sharded`.

    Order of the calls (``tests/unit/strategies/test_strategy_calls.py`` checks it for the training loop)::

        check                           on the driver, before the job starts; all other calls are made on each rank
        advertise                       before the ranks know each other
        join                            all ranks are known
        load_optimizer_state            only when training resumes from a checkpoint
        load_state                      only when training resumes from a checkpoint
        for each optimizer step:
            begin_step
            for each micro-batch (k of them if gradients are accumulated over k):
                forward                 a context around the model and its loss
                backward                a context around the backward pass; ``last``: the step's last micro-batch
            before_forward              in place of the micro-batches, on a rank without rows in the step;
                                        the loop then fills in its gradients
            after_backward
            gradients                   only if gradients are clipped, or scaled for fp16
            update
            owned, optimizer_state,
            state                       in any order, when a checkpoint is written
            before_forward              before a validation, a callback or a scheduler reads an epoch's parameters
        finish
        close                           after success and after failure

    Another thread may call ``abort`` at any time after ``advertise``.
    """

    #: True if the strategy needs the Spark plugin in the executors.
    needs_plugin = False

    @classmethod
    def full_name(cls, conf: CommConf) -> str:
        """Return the strategy's name, with ``collective.loop`` appended where there are several loops."""
        return conf.strategy

    #: True if all ranks share their steps: the next parameters are made from the gradients of all ranks in this step, and from
    #: no others. The synchronous training loop relies on it for epochs, validation, history and checkpoints.
    is_synchronous = True

    #: True if a rank's loss must be its share of the mean over all ranks' rows in the step; gradients are then summed over the
    #: ranks. False: the loss is the mean over the rank's own rows in the step; the strategy weights the ranks itself.
    needs_global_mean = True

    #: True if each rank updates only the values that its :meth:`owned` returns, possibly none, and writes them and their
    #: optimizer state into checkpoints. False: every rank owns and updates all values; rank 0 writes them.
    is_sharded = False

    #: True if a rank updates stripes of tensors; the optimizer must then be elementwise.
    has_stripes = False

    #: True if the strategy can send compressed gradients (``spark.sparkdl.comm.compression``).
    can_compress = False

    #: True if ranks compute with rounded parameters. Only :meth:`owned` then returns the values before rounding.
    has_rounded_parameters = False

    #: True if a rank keeps its parameters from one step to the next; a callback may then change them, if it makes the same
    #: change on all ranks.
    can_take_changes = False

    #: Number of this strategy in its gang, from 0. Several strategies may join one gang, one after another.
    number = 0

    #: The next or the current step. The training loop sets it before :meth:`begin_step`.
    step_info = StepInfo()

    #: Trace of the last iterations; None if ``spark.sparkdl.comm.timeline`` is 0.
    trace: Trace | None = None

    #: The user's optimizer over the values that this rank updates. Set by :meth:`join`.
    optimizer: torch.optim.Optimizer

    @classmethod  # noqa: B027 - most strategies have nothing to check
    def check(cls, conf: CommConf, world: int) -> None:
        """Check the settings on the driver, before the job starts.

        :raises ConfError: ``world`` ranks cannot run the strategy with these settings.
        """

    def __init__(self, conf: CommConf) -> None:
        self.conf = conf
        if conf.timeline:
            from sparkdl_comm.strategies.trace import Trace

            self.trace = Trace(conf.timeline)
        self.watch = Stopwatch(self.trace)

    def advertise(self, attempt_id: str, rank: int) -> dict[str, Any]:
        """Return what the other ranks need to know about this rank before :meth:`join`; JSON-able."""
        return {}

    @abstractmethod
    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        """Bind the model and make the optimizer. Each member's ``payload["strategy"]`` holds what that rank advertised."""

    @abstractmethod
    def before_forward(self) -> None:
        """Wait until the parameters of the next step are in place. May be called repeatedly."""

    def begin_step(self) -> None:
        """Wait until :meth:`forward` may begin."""
        self.before_forward()

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context for the forward pass and the loss.

        Inside it each parameter is in place when it is used; after it all parameters are.
        """
        return contextlib.nullcontext()

    def backward(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Return a context for a backward pass. In the step's ``last`` one, gradients may be sent once they are ready."""
        return contextlib.nullcontext()

    @abstractmethod
    def after_backward(self) -> None:
        """Finish sending this rank's gradients, which are now complete."""

    @abstractmethod
    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients that :meth:`update` will use, summed over the ranks. The caller may change them in place."""

    @abstractmethod
    def update(self, apply: bool = True) -> None:
        """Take the optimizer's step, or skip it if ``apply`` is False. ``apply`` must be the same on all ranks."""

    @abstractmethod
    def owned(self) -> list[tuple[int, torch.Tensor]]:
        """Return the unrounded values that this rank updates: (first element in the flat vector, float32 ``[n]``).

        They are on the CPU or a GPU.

        Between :meth:`update` and :meth:`before_forward`, a rank of a sharded strategy has no other values of the next step.
        """

    def stripes(self) -> list[tuple[int, torch.nn.Parameter]]:
        """Return what :attr:`optimizer` updates: (first element in the flat vector, whole parameter or flat stripe of one).

        Only the strategies that ``auto`` can choose implement it.
        """
        return []

    def optimizer_state(self) -> dict[str, Any]:
        """Return torch's ``state_dict``, for this rank's shard if the strategy is sharded. Tensors are not copied."""
        return self.optimizer.state_dict()

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Load what :meth:`optimizer_state` returned on the same rank of a gang of the same size, before the first step."""
        self.optimizer.load_state_dict(state)

    def state(self) -> dict[str, Any]:
        """Return what else this rank keeps from step to step, such as the residuals of compression, for checkpoints.

        The values are numbers, strings, lists and dicts of them, and tensors. Tensors are not copied.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - most strategies keep nothing
        """Load what :meth:`state` returned on the same rank of a gang of the same size."""

    def details(self) -> dict[str, Any]:
        """Return what the run's summary adds for this strategy to times and bytes; JSON-able."""
        return {}

    @abstractmethod
    def finish(self) -> None:
        """Wait until this rank has the final parameters and no other rank needs it any more."""

    @abstractmethod
    def abort(self) -> None:
        """End every wait in another call of this object with an error. May be called from any thread."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Called after success and after failure."""


class ReplicatedStrategy(Strategy):
    """Strategy in which every rank takes the whole optimizer step in place. A subclass sums the gradients."""

    can_take_changes = True

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        model.bind()
        self._model = model
        self._world = gang.world
        self.optimizer = make_optimizer([(parameter, parameter) for parameter in model.parameters])
        if isinstance(self.optimizer, Layerwise):
            self.optimizer.share(GangRanks(gang, self.conf.timeout))
        self._sparse = make_optimizer.needs_sparse(self.optimizer)

    def before_forward(self) -> None:
        """Do nothing: the parameters are already in place."""

    def gradients(self) -> list[torch.Tensor]:
        return [self._model.gradients]

    def update(self, apply: bool = True) -> None:
        with self.watch.phase("update"):
            if apply:
                self._model.settle_gradients(self._sparse)
                self.optimizer.step()

    def stripes(self) -> list[tuple[int, torch.nn.Parameter]]:
        return [(entry.start, own) for entry, own in zip(self._model.entries, self._model.parameters, strict=True)]

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return [(0, self._model.values)]


class AsynchronousStrategy(Strategy):
    """Strategy in which a rank computes with one version of the model and its update goes into a later version.

    The order of the calls is that of :class:`Strategy`. In addition, ``settle`` may be called after any ``update``. All ranks
    must have settled before ``finish`` is called or a checkpoint is written.
    """

    is_synchronous = False
    needs_global_mean = False

    #: Number of updates in the model that :meth:`before_forward` received last.
    version = 0
    #: True if updates may be dropped and ranks may make different numbers of them; an epoch is then a number of updates of the
    #: model. False: every rank makes the same number in an epoch.
    free_running = True

    def begin_step(self) -> None:
        """Do nothing: the loop calls :meth:`before_forward` itself, as it needs the version before a step begins."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until this rank's last update is accepted or dropped."""
