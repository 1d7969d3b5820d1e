"""Training objective: the loss of a batch, in the chosen precision, with the weights of its rows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from sparkdl_comm.data.cache import Batch
from sparkdl_comm.data.fields import Field
from sparkdl_comm.data.ragged import call
from sparkdl_comm.errors import ModelError
from sparkdl_comm.space.module_state import modules_of
from sparkdl_comm.train.class_mean import ClassMean
from sparkdl_comm.train.diagnosis import explain_error, explain_mismatch, members
from sparkdl_comm.train.spec import Loss

#: Advice for a loss that has parameters of its own.
LOSS_PARAMETERS_ADVICE = (
    "Make them parameters of the model and return them with its output, one per row: `return output,"
    " self.scale.expand(len(output))`. The loss then gets `(output, scale), target`. Or freeze them"
    " (requires_grad_(False))"
)

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Objective:
    """Loss that training minimizes.

    :param loss: (output, target) -> mean over the rows, a scalar. If the batch has weights: one loss per row,
        ``[rows]`` or ``[rows, …]``.
    :param precision: ``fp32``, ``bf16`` or ``fp16``. Forward and loss run under torch.autocast.
    :param fields: feature columns, for messages.
    :param on_first_output: called once, before the loss, with the first output and its number of rows.
    """

    def __init__(
        self,
        loss: Loss,
        precision: str,
        device: torch.device,
        fields: Sequence[Field] = (),
        on_first_output: Callable[[Any, int], None] | None = None,
    ) -> None:
        self._loss = loss
        self._dtype = _AUTOCAST.get(precision)
        self._fields, self._on_first_output = fields, on_first_output
        self._has_checked_parameters = False
        self.device = device

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self._dtype)

    def __call__(self, module: torch.nn.Module, batch: Batch) -> tuple[Any, torch.Tensor]:
        """Return the module's output, matched to the target's shape, and the loss.

        The loss is a scalar: the mean over the rows of weight x loss, or 0 for a batch without rows. :class:`ClassMean`
        defines its own mean.

        :raises ModelError: the loss returns no valid tensor, or depends on a parameter that is not the module's; or
            rows, model and labels do not match.
        """
        with self.autocast():
            output = self.output(module, batch)
            if self._on_first_output is not None:
                self._on_first_output(output, batch.rows)
                self._on_first_output = None
            if not batch.rows:
                return output, _zero_loss(output)
            problem = explain_mismatch(self._loss, output, target_of(batch))
            if problem is not None:
                raise ModelError(problem)
            if isinstance(self._loss, ClassMean):
                loss = self._loss(output, batch.targets[0], batch.weights)
            else:
                loss = self._loss(output, target_of(batch))
        if not self._has_checked_parameters and isinstance(loss, torch.Tensor) and loss.grad_fn is not None:
            self._has_checked_parameters = True
            _check_parameters(loss.grad_fn, module)
        if batch.weights is None or isinstance(self._loss, ClassMean):
            _check_scalar(loss)
            return output, loss
        return output, (_per_row(loss, len(batch.weights)) * batch.weights).mean()

    @contextlib.contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Return a context that puts modules of the loss into eval mode, so that validation rows do not change their
        state.
        """
        training = [module for module in modules_of(self._loss) if module.training]
        for module in training:
            module.eval()
        try:
            yield
        finally:
            for module in training:
                module.train()

    def output(self, module: torch.nn.Module, batch: Batch) -> Any:
        """Return the module's output, matched to the target's shape.

        :raises ModelError: the rows do not match the model's first layer.
        """
        return match_target(self._forward(module, batch), batch.targets)

    def sizes(self, batch: Batch) -> tuple[float, float]:
        """Return the divisor of this batch's mean loss, and the batch's weight in a mean over several batches."""
        if isinstance(self._loss, ClassMean):
            count = self._loss.counts(batch.targets[0], batch.weights).sum().item()
            return count, count
        rows = float(batch.rows)
        return rows, rows if batch.weights is None else batch.weights.sum().item()

    def _forward(self, module: torch.nn.Module, batch: Batch) -> Any:
        try:
            return call(module, batch.inputs)
        except (RuntimeError, IndexError) as exc:
            problem = explain_error(exc, module, batch.inputs, self._fields)
            if problem is None:
                raise
            raise ModelError(f"{problem}. torch says: {exc}") from None


def move_to_device(loss: Loss, device: torch.device) -> Loss:
    """Return the loss with its tensors, such as class weights, on ``device``. Its modules are moved in place."""

    def move(value: Any) -> Any:
        if isinstance(value, functools.partial):
            keywords = {name: move(argument) for name, argument in value.keywords.items()}
            return functools.partial(move(value.func), *map(move, value.args), **keywords)
        return value.to(device) if isinstance(value, torch.Tensor) else value

    for module in modules_of(loss):
        module.to(device)
    moved: Loss = move(loss)
    return moved


def target_of(batch: Batch) -> Any:
    """Return the target as losses and metrics take it: a tensor, or a tuple if there are several label columns."""
    return batch.targets[0] if len(batch.targets) == 1 else batch.targets


def match_target(output: Any, targets: tuple[torch.Tensor, ...]) -> Any:
    """Reshape a one-column output [rows, 1] to [rows] like its float labels; torch would broadcast to [rows, rows]."""
    if len(targets) == 1 and isinstance(output, torch.Tensor) and targets[0].is_floating_point():
        (target,) = targets
        if target.dim() == 1 and output.shape == (len(target), 1):
            return output.squeeze(1)
    return output


def _zero_loss(output: Any) -> torch.Tensor:
    """Return 0, with gradient 0 for every tensor of an output without rows.

    Collectives in the model have a backward pass too, which must run on this rank.
    """
    if isinstance(output, torch.Tensor):
        return output.float().sum()
    return torch.stack([torch.zeros(()), *map(_zero_loss, members(output).values())]).sum()


def _check_parameters(node: Any, module: torch.nn.Module) -> None:
    """Check that every trainable parameter on which the loss depends belongs to the module.

    :param node: autograd node of the loss.
    :raises ModelError: the loss depends on another torch.nn.Parameter.
    """
    model_ids = {id(parameter) for parameter in module.parameters()}
    visited, pending = {node}, [node]
    while pending:
        node = pending.pop()
        leaf = getattr(node, "variable", None)  # only nodes of leaf tensors have it
        if isinstance(leaf, torch.nn.Parameter) and id(leaf) not in model_ids:
            raise ModelError(
                f"the loss depends on a torch.nn.Parameter of shape {list(leaf.shape)} that the model does not have, so"
                f" nothing trains it. {LOSS_PARAMETERS_ADVICE}"
            )
        new = {before for before, _ in node.next_functions if before is not None} - visited
        visited |= new
        pending.extend(new)


def _check_scalar(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ModelError(f"loss: must return a scalar tensor (the mean over the rows), not {_shape(loss)}.")


def _per_row(loss: Any, rows: int) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.dim() == 0 or loss.shape[0] != rows:
        raise ModelError(
            f"loss: with weightCol it must return one loss per row, [{rows}], not {_shape(loss)}. For a loss of torch.nn, set"
            " reduction='none'."
        )
    return loss.flatten(1).mean(1) if loss.dim() > 1 else loss


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
