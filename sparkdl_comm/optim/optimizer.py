"""The user's optimizer and learning-rate scheduler: settings, creation of the optimizer, and steps of the scheduler.

A rank's optimizer is created over what the rank updates: whole parameters, or stripes of them with the same options.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau

from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.space.flat import FlatModel

#: A module, or a callable without arguments that returns one (a class, a function).
ModelLike: TypeAlias = "torch.nn.Module | Callable[[], torch.nn.Module]"
#: ``parameters`` -> optimizer. With strategy ps, the parameters are those of one shard.
OptimizerFactory: TypeAlias = Callable[[Any], torch.optim.Optimizer]
#: ``optimizer`` -> a scheduler of torch.optim.lr_scheduler. A parameter ``total_steps`` or ``num_training_steps`` is
#: filled in.
SchedulerFactory: TypeAlias = Callable[..., Any]
#: ``module`` -> parameter groups, as torch.optim takes them.
ParamGroups: TypeAlias = Callable[[torch.nn.Module], list[dict[str, Any]]]


def build_module(model: ModelLike) -> nn.Module:
    """Return ``model`` if it is a module, else what the factory returns.

    :raises ModelError: the factory did not return a torch.nn.Module.
    """
    module = model if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise ModelError(f"model: the factory returned {type(module).__name__}; it must return a torch.nn.Module")
    return module


@dataclass(frozen=True)
class Optimization:
    """Settings of how gradients become an update.

    :param accumulation_steps: batches per optimizer step.
    :param max_grad_norm: the gradient is scaled down to this L2 norm over all parameters if its norm is larger. None:
        never.
    :param scheduler_interval: ``epoch`` or ``step``. None: as the scheduler needs it.
    :param precision: precision of torch.autocast: ``fp32`` (off), ``bf16`` or ``fp16``.
    """

    optimizer: OptimizerFactory
    param_groups: ParamGroups | None = None
    lr_scheduler: SchedulerFactory | None = None
    scheduler_interval: str | None = None
    accumulation_steps: int = 1
    max_grad_norm: float | None = None
    precision: str = "fp32"

    @property
    def needs_all_gradients(self) -> bool:
        """True if the update of any parameter depends on the gradients of all parameters."""
        return self.max_grad_norm is not None or self.precision == "fp16"


class OptimizerMaker:
    """Factory of one rank's optimizer. All ranks' optimizers have the same groups, so a scheduler may treat groups
    differently.

    :raises ModelError: the user's factory does not return an optimizer, or ``param_groups`` does not return groups that
        hold each trainable parameter of the module once.
    """

    def __init__(self, model: FlatModel, optimization: Optimization) -> None:
        #: The user's optimizer factory.
        self.factory = optimization.optimizer
        self._optimization, self._parameters = optimization, model.parameters
        self._sparse = {id(model.parameters[number]) for number in model.sparse}
        self._groups: list[tuple[dict[str, Any], set[int]]] | None = None
        if optimization.param_groups is not None:
            self._groups = _groups(model, optimization.param_groups(model.module))

    @functools.cached_property
    def needs_all_gradients(self) -> bool:
        """True if the optimizer may step only when all gradients are complete.

        Without clipping and fp16, torch's optimizers may step earlier, since they keep all state per parameter. Others
        may count their steps, or need norms of all layers.
        """
        if self._optimization.needs_all_gradients:
            return True
        optimizer = self([(parameter, nn.Parameter(torch.empty(0))) for parameter in self._parameters])
        return not type(optimizer).__module__.startswith("torch.optim.")

    def __call__(self, tensors: Sequence[tuple[nn.Parameter, nn.Parameter]]) -> torch.optim.Optimizer:
        """Return the optimizer. ``tensors``: pairs of a module's parameter and the tensor that this rank updates: the
        same parameter, or a stripe of it.
        """
        if self._groups is None:
            params: list[Any] = _at_least_one([tensor for _, tensor in tensors])
        else:
            params = [
                {**options, "params": _at_least_one([tensor for owner, tensor in tensors if id(owner) in members])}
                for options, members in self._groups
            ]
        optimizer = self.factory(params)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ModelError(
                f"optimizer: the factory returned {type(optimizer).__name__}; it must return a torch.optim.Optimizer"
            )
        check_steps(optimizer)
        return optimizer

    def needs_sparse(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether parameters with sparse gradients must keep them sparse.

        False for torch's SGD and Adagrad, which do the same with dense gradients.

        :raises ModelError: ``optimizer`` takes no sparse gradients, like torch's Adam.
        """
        options = (
            [{}] if self._groups is None else [options for options, members in self._groups if members & self._sparse]
        )
        for option in options if self._sparse else []:
            weight = nn.Parameter(torch.ones(2, 1))
            weight.grad = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1, 1), (2, 1), check_invariants=True)
            try:
                self.factory([{**option, "params": [weight]}]).step()
            except RuntimeError as exc:
                raise ModelError(
                    f"optimizer {type(optimizer).__name__} takes no sparse gradients ({exc}), and the model has an Embedding"
                    " with sparse=True. Set sparse=False, or use torch.optim.SparseAdam with strategy gloo or ring"
                    " (spark.sparkdl.comm.strategy)."
                ) from exc
        return bool(self._sparse) and type(optimizer) not in (torch.optim.SGD, torch.optim.Adagrad)

    def group_of(self, parameter: nn.Parameter) -> int:
        """Return the number of the parameter's group."""
        groups = self._groups or []
        return next((number for number, (_, members) in enumerate(groups) if id(parameter) in members), 0)


def check_steps(optimizer: torch.optim.Optimizer) -> None:
    """Check that the optimizer steps without a closure.

    :raises ModelError: its ``step`` needs a closure.
    """
    try:
        inspect.signature(optimizer.step).bind()
    except TypeError as error:
        raise ModelError(
            f"optimizer {type(optimizer).__name__}: its step wants a closure that computes the loss again ({error}). No"
            " strategy supports that. Use another optimizer, such as torch.optim.Adam, or train in one process."
        ) from None


def _at_least_one(tensors: list[nn.Parameter]) -> list[nn.Parameter]:
    """Return ``tensors``, or an empty parameter if there are none: torch refuses an optimizer without parameters."""
    if tensors:
        return tensors
    return [nn.Parameter(torch.empty(0))]


def _groups(model: FlatModel, given: Any) -> list[tuple[dict[str, Any], set[int]]]:
    if not isinstance(given, list) or not all(isinstance(group, dict) and "params" in group for group in given):
        raise ModelError(
            f"param_groups must return a list of dicts with 'params', as torch.optim takes it, not {given!r:.200}."
        )
    trainable = {id(parameter) for parameter in model.parameters}
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    groups = []
    seen: set[int] = set()
    for group in given:
        members = {id(parameter) for parameter in _parameters(group["params"])}
        strangers = len(members - names.keys())
        if strangers:
            raise ModelError(f"param_groups: {strangers} tensors are no parameters of the module that was passed")
        duplicates = sorted(names[key] for key in members & seen)
        if duplicates:
            raise ModelError(f"param_groups: parameters in more than one group: {', '.join(duplicates)}")
        seen |= members
        groups.append(({key: value for key, value in group.items() if key != "params"}, members))
    missing = sorted(names[key] for key in trainable - seen)
    if missing:
        raise ModelError(
            f"param_groups leaves out trainable parameters: {', '.join(missing)}. Put them into a group, or freeze them"
            " (requires_grad_(False))."
        )
    return groups


def _parameters(params: Any) -> Iterable[nn.Parameter]:
    if isinstance(params, nn.Parameter):
        return [params]
    return [item[1] if isinstance(item, tuple) else item for item in params]  # torch takes named parameters too


#: Advice if validation rows are missing.
VALIDATION_ADVICE = "set validationIndicatorCol or validationFraction"

#: Schedulers made for steps: per epoch they would change next to nothing.
_PER_STEP = (OneCycleLR, CyclicLR)


def is_plateau_scheduler(factory: Any) -> bool:
    """Return whether ``factory`` is ReduceLROnPlateau, perhaps with arguments. It returns False for a function that
    creates one.
    """
    while isinstance(factory, functools.partial):
        factory = factory.func
    return isinstance(factory, type) and issubclass(factory, ReduceLROnPlateau)


#: Parameter names for the total number of steps: torch's, and Hugging Face's.
_TOTALS = ("total_steps", "num_training_steps")


def _total_parameter(factory: Any) -> str | None:
    """Return the name of the parameter that takes the total number of steps. None: there is none, or the user has set
    it.

    OneCycleLR's ``epochs`` and ``steps_per_epoch`` together set it, too.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # the factory is not written in Python
        return None
    given = {name for name, of in parameters.items() if of.default is not None and of.default is not of.empty}
    if {"epochs", "steps_per_epoch"} <= given:
        return None
    return next((name for name in _TOTALS if name in parameters and name not in given), None)


class Schedule:
    """Runner of the learning-rate scheduler.

    A factory with a parameter ``total_steps`` or ``num_training_steps`` gets the number of steps that its scheduler
    will take.

    :param steps: optimizer steps per epoch.
    :raises ModelError: the factory does not return a scheduler.
    :raises ConfError: ReduceLROnPlateau is to step per step, when no rank knows the loss over all ranks; or a
        OneCycleLR would end before training does.
    """

    def __init__(self, optimization: Optimization, optimizer: torch.optim.Optimizer, steps: int, epochs: int) -> None:
        self._optimizer = optimizer
        interval, factory = optimization.scheduler_interval, optimization.lr_scheduler
        self._per_step = interval == "step"
        self._scheduler: Any = None
        if factory is None:
            return
        total = epochs if interval == "epoch" else steps * epochs
        wants_total = _total_parameter(factory)
        self._scheduler = factory(optimizer) if wants_total is None else factory(optimizer, **{wants_total: total})
        each = [
            self._scheduler,
            *getattr(self._scheduler, "_schedulers", ()),
        ]  # SequentialLR and ChainedScheduler have some
        if interval is None:
            self._per_step = wants_total is not None or any(isinstance(one, _PER_STEP) for one in each)
        if isinstance(self._scheduler, OneCycleLR) and self._scheduler.total_steps < total:
            raise ConfError(
                f"lr_scheduler: OneCycleLR has total_steps={self._scheduler.total_steps}, and training takes {total}."
                " Leave out total_steps, epochs and steps_per_epoch; fit fills them in."
            )
        if not all(
            callable(getattr(self._scheduler, name, None)) for name in ("step", "state_dict", "load_state_dict")
        ):
            raise ModelError(f"lr_scheduler made a {type(self._scheduler).__name__}, not a scheduler of torch.optim")
        if self.needs_value and self._per_step:
            raise ConfError(
                "lrSchedulerInterval='step': ReduceLROnPlateau needs 'epoch', since its value is known only then"
            )

    @property
    def needs_value(self) -> bool:
        """True if :meth:`after_epoch` needs the monitored value."""
        return isinstance(self._scheduler, ReduceLROnPlateau)

    @property
    def is_per_step(self) -> bool:
        return self._scheduler is not None and self._per_step

    def rate(self) -> float:
        """Return the learning rate of the first group."""
        return float(self._optimizer.param_groups[0]["lr"])

    def after_step(self) -> None:
        if self.is_per_step:
            self._scheduler.step()

    def after_epoch(self, value: float | None = None) -> None:
        """Step the scheduler if it steps per epoch.

        :param value: monitored value for ReduceLROnPlateau, equal on all ranks. Other schedulers need none.
        """
        if self._scheduler is None or self._per_step:
            return
        if self.needs_value:
            self._scheduler.step(value)
        else:
            self._scheduler.step()

    def state(self) -> dict[str, Any] | None:
        return None if self._scheduler is None else self._scheduler.state_dict()

    def load_state(self, state: dict[str, Any] | None) -> None:
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state)
