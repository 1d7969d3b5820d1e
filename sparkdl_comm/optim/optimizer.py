"""Creation of the user's optimizer over what a rank updates: whole parameters, or stripes of them with the same
options.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from sparkdl_comm.errors import ModelError
from sparkdl_comm.optim.optimization import Optimization
from sparkdl_comm.space.flat import FlatModel


class OptimizerMaker:
    """Factory of one rank's optimizer. All ranks' optimizers have the same groups, so a scheduler may treat groups
    differently.

    :raises ModelError: the user's factory does not return an optimizer, or ``param_groups`` does not return groups that
        hold each trainable parameter of the module once.
    """

    def __init__(self, model: FlatModel, optimization: Optimization) -> None:
        #: The user's optimizer factory.
        self.factory = optimization.optimizer
        #: True if the optimizer may step only when all gradients are complete.
        self.needs_all_gradients = optimization.needs_all_gradients
        self._sparse = {id(model.parameters[number]) for number in model.sparse}
        self._groups: list[tuple[dict[str, Any], set[int]]] | None = None
        if optimization.param_groups is not None:
            self._groups = _groups(model, optimization.param_groups(model.module))

    def __call__(self, tensors: Sequence[tuple[nn.Parameter, nn.Parameter]]) -> torch.optim.Optimizer:
        """Return the optimizer. ``tensors``: pairs of a module's parameter and what this rank updates of it, itself or
        a stripe.
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
