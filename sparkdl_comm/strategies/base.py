"""How the gradients of a step become the parameters of the next one: the interface, and the register of those there are."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from sparkdl_comm.errors import ConfError
from sparkdl_comm.strategies.trace import Trace

if TYPE_CHECKING:
    from sparkdl_comm.conf import CommConf
    from sparkdl_comm.gang.gang import Gang
    from sparkdl_comm.optim.optimizer import OptimizerMaker
    from sparkdl_comm.space.flat import FlatModel

PHASES = ("pull", "forward", "backward", "push", "aggregate", "update")

#: What a trace calls the phases in which a rank only waits.
_WAITS = {"pull": "wait for pull", "push": "wait for push"}


class Stopwatch:
    """Seconds spent in each phase, and bytes that came to this rank from others. Tells the ``trace``, if there is one."""

    def __init__(self, trace: Trace | None = None) -> None:
        self._trace = trace
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.bytes = {"pull": 0, "push": 0}
        self._inner = 0.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase inside of another one is not counted into that one."""
        outside, self._inner = self._inner, 0.0
        begin = time.perf_counter()
        yield
        end = time.perf_counter()
        if self._trace is not None:
            self._trace.add(_WAITS.get(name, name), begin, end)
        seconds = end - begin
        self.seconds[name] += seconds - self._inner
        self._inner = outside + seconds


class StepInfo(NamedTuple):
    """``step``: from 1, through all epochs; ``epoch``: from 1. ``loss_scale``: by which the step's loss is multiplied, and so
    its gradients are, until the rule for gradients undoes it. ``learning_rate``: of the optimizer's first group. ``dense``:
    whatever compression left out before is to travel now, and nothing is left out."""

    step: int = 1
    epoch: int = 1
    loss_scale: float = 1.0
    learning_rate: float = 1.0
    dense: bool = False


class Strategy(ABC):
    """One rank's part in a way to train. What kind of way it is, class attributes say, which training loop, gradient rule and
    checkpoints read: :attr:`synchronous`, :attr:`global_mean`, :attr:`sharded`.

    The order of the calls, which ``tests/unit/test_strategy_calls.py`` holds the training loop to::

        check                           on the driver, before any executor is touched; all others on each rank
        advertise                       before the ranks know each other
        join                            all ranks are known
        load_optimizer_state            where training goes on from a checkpoint
        load_state                      likewise
        for each optimizer step:
            begin_step
            for each part of the batch: k parts if gradients are accumulated over k
                forward                 a context around the model and its loss
                backward                a context around the backward pass; its ``last``: of the step's parts
            before_forward              instead, on a rank without rows in the step; its gradients are filled in then
            after_backward
            gradients                   only if gradients are clipped, or scaled for fp16
            update
            owned, optimizer_state,
            state                       in any order, where a checkpoint is written
            before_forward              where a validation, a callback or a scheduler is to see an epoch's parameters
        finish
        close                           after success and failure alike

    ``abort`` may come from another thread at any time after ``advertise``.
    """

    #: True if executors need the Spark plugin for it.
    needs_plugin = False

    @classmethod
    def full_name(cls, conf: CommConf) -> str:
        """Return the name of what trains, with the loop where there are several."""
        return conf.strategy

    #: True if steps are common to all ranks: the gradients of all ranks in a step, and no others, make the parameters of the
    #: next one. The training loop is for such strategies only: its epochs, validation, history and checkpoints count on it.
    synchronous = True

    #: True if a rank's loss is to be its share of the mean over all ranks' rows in the step, so that gradients are summed
    #: over the ranks. False: the mean over the rank's own rows in the step; the strategy weighs the ranks itself.
    global_mean = True

    #: Who owns which values. True: each rank those that its :meth:`owned` has, perhaps none; it updates them, and writes them
    #: and their optimizer's state into checkpoints. False: every rank owns and updates all; rank 0 writes them.
    sharded = False

    #: True if what a rank updates is stripes of tensors, so that the optimizer must be elementwise.
    cuts_tensors = False

    #: True if ``spark.sparkdl.comm.compression`` may make the gradients that travel sparse.
    compresses = False

    #: True if ranks compute with rounded parameters, so that :meth:`owned` alone has the exact ones.
    rounds = False

    #: True if a rank's next step begins with the parameters that it has after a step, so that a callback may change them, on
    #: all ranks alike.
    takes_changes = False

    #: Which one of a rank's strategies it is, from 0: one after another may join one gang.
    number = 0

    #: Which step is next, or under way: the training loop says so before :meth:`begin_step`.
    step_info = StepInfo()

    #: The user's, over what this rank updates; there from :meth:`join` on.
    optimizer: torch.optim.Optimizer

    @classmethod  # noqa: B027 - most strategies have nothing to check
    def check(cls, conf: CommConf, world: int) -> None:
        """On the driver, before any executor is touched. ConfError if ``world`` ranks cannot run it with these settings."""

    def __init__(self, conf: CommConf) -> None:
        self.conf = conf
        #: Of the last iterations; None if nobody wants it.
        self.trace = Trace(conf.timeline) if conf.timeline else None
        self.watch = Stopwatch(self.trace)

    def advertise(self, attempt_id: str, rank: int) -> dict[str, Any]:
        """What the other ranks have to know of this one before :meth:`join`; JSON-able."""
        return {}

    @abstractmethod
    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        """All ranks are known, with what each of them advertised in ``payload["strategy"]``. Binds the model."""

    @abstractmethod
    def before_forward(self) -> None:
        """Returns when the parameters of the next step are in place. May be called again."""

    def begin_step(self) -> None:
        """Returns when :meth:`forward` may begin."""
        self.before_forward()

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        """Around what a step computes of its output and loss: each parameter is in place when it is used, and all at the
        end."""
        return contextlib.nullcontext()

    def backward(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around a backward pass; ``last``: of the step, so that gradients may travel as soon as they are there."""
        return contextlib.nullcontext()

    @abstractmethod
    def after_backward(self) -> None:
        """This rank's gradients are complete."""

    @abstractmethod
    def gradients(self) -> list[torch.Tensor]:
        """What :meth:`update` is about to use, the sum over the ranks; may be changed in place."""

    @abstractmethod
    def update(self, apply: bool = True) -> None:
        """The optimizer's step, on all ranks; none if not ``apply``, on all ranks."""

    @abstractmethod
    def owned(self) -> list[tuple[int, torch.Tensor]]:
        """Exact values of what this rank updates: (first element in the flat vector, float32 ``[n]`` on the CPU or GPU).

        Between :meth:`update` and :meth:`before_forward`, these are all that a rank of a sharded strategy has of the next
        step's values.
        """

    def stripes(self) -> list[tuple[int, torch.nn.Parameter]]:
        """What :attr:`optimizer` updates: (first element in the flat vector, whole parameter or flat stripe of one). Only of
        strategies among which ``auto`` chooses."""
        return []

    def optimizer_state(self) -> dict[str, Any]:
        """torch's ``state_dict``; of this rank's shard where the strategy is sharded. Tensors are not copied."""
        return self.optimizer.state_dict()

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """After :meth:`join`, before the first step, on a rank of the same number in a gang of the same size."""
        self.optimizer.load_state_dict(state)

    def state(self) -> dict[str, Any]:
        """What this rank keeps from step to step beside parameters and optimizer, such as what compression left out:
        numbers, strings, lists and dicts of them, and tensors, which are not copied. In every checkpoint."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - most strategies keep nothing
        """What :meth:`state` returned on the rank of the same number in a gang of the same size."""

    def details(self) -> dict[str, Any]:
        """What the run's summary says of this strategy beside times and bytes; JSON-able."""
        return {}

    @abstractmethod
    def finish(self) -> None:
        """Returns when this rank has the final parameters and nobody needs it any more."""

    @abstractmethod
    def abort(self) -> None:
        """From any thread: whatever this rank waits for in another call of this class ends with an error."""

    @abstractmethod
    def close(self) -> None:
        """Gives back everything, after success and failure alike."""


#: By the name that users choose: what makes the class, from the settings.
STRATEGIES: dict[str, Callable[[CommConf], type[Strategy]]] = {}

Made = TypeVar("Made", bound=Callable[[Any], Any])


def register(*names: str) -> Callable[[Made], Made]:
    """A decorator: the function makes the class of each of these strategies, whose name is in ``conf.strategy``.

    :raises ConfError: a name is taken, or what is registered is the class itself.
    """

    def decorate(made: Made) -> Made:
        for name in names:
            if isinstance(made, type):
                raise ConfError(f"strategy {name!r}: register a function, such as lambda conf: {made.__name__}")
            if name in STRATEGIES:
                raise ConfError(f"strategy {name!r} is registered already")
            STRATEGIES[name] = made
        return made

    return decorate
