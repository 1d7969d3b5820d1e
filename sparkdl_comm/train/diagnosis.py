"""Explanations of mismatches between model, loss and rows, in terms of the user's settings; the output's shape."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.data.fields import Field
from sparkdl_comm.errors import InputError, ModelError

#: Losses that compare output and labels element by element. Their labels are float32 for any column type.
_VALUE_LOSSES = (
    nn.L1Loss,
    nn.MSELoss,
    nn.HuberLoss,
    nn.SmoothL1Loss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
    nn.SoftMarginLoss,
    nn.KLDivLoss,
)
_VALUE_FUNCTIONS = (
    F.l1_loss,
    F.mse_loss,
    F.huber_loss,
    F.smooth_l1_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.poisson_nll_loss,
    F.soft_margin_loss,
    F.kl_div,
)


#: Pattern of torch's messages about an input type that a layer does not accept.
_TYPES = re.compile(
    r"scalar type|dtype|[Ii]nput type|index tensor of type|used as indices must be|not implemented for '(Long|Float)'"
)


@dataclass(frozen=True)
class ClassLabels:
    """Check of labels for a loss over classes: each is 0 to the number of classes less one, or ``ignored``.

    torch names one bad label, but not how many there are nor their column; on a GPU it ends the process.

    :param column: label column, for messages.
    """

    column: Field
    ignored: int | None = None

    def check(self, output: Any, parts: Sequence[RowCache], rank: int) -> None:
        """Check that the labels are classes of the model.

        :param output: the model's output for a batch: ``[rows, classes, …]``.
        :param parts: all rows of this rank.
        :raises InputError: labels are outside the classes. The message says in how many rows.
        :raises ModelError: the shapes do not match.
        """
        shape = parts[0].targets[0].shape[1:]
        if not isinstance(output, torch.Tensor) or output.dim() < 2 or output.shape[2:] != shape:
            given = list(output.shape[1:]) if isinstance(output, torch.Tensor) else f"a {type(output).__name__}"
            raise ModelError(
                f"a loss over classes takes [classes{''.join(f', {length}' for length in shape)}] per row, for the labels in"
                f" {self.column}. The model's output is {given}."
            )
        classes = output.shape[1]
        rows = bad_rows = 0
        found: list[torch.Tensor] = []
        for part in parts:
            (labels,) = part.targets
            is_outside = (labels < 0) | (labels >= classes)
            if self.ignored is not None:
                is_outside &= labels != self.ignored
            bad_rows += int(is_outside.flatten(1).any(1).sum()) if is_outside.dim() > 1 else int(is_outside.sum())
            rows += part.rows
            found.append(labels[is_outside])
        if bad_rows:
            raise InputError(
                f"{bad_rows} of {rows} rows of rank {rank} have a label outside of 0 to {classes - 1} in {self.column}, such"
                f" as {torch.cat(found)[0]}: the model's output has {classes} classes",
                rank=rank,
            )


def compares_values(loss: Any) -> bool:
    """Return whether ``loss`` is a loss of torch.nn or torch.nn.functional that compares element by element."""
    return isinstance(loss, _VALUE_LOSSES) or getattr(loss, "func", loss) in _VALUE_FUNCTIONS


def explain_mismatch(loss: Any, output: Any, target: Any) -> str | None:
    """Return an error text if output and target differ in shape under an element-wise loss; otherwise None.

    Torch may broadcast such tensors, and so compute a wrong loss.
    """
    if not compares_values(loss) or not isinstance(output, torch.Tensor) or not isinstance(target, torch.Tensor):
        return None
    if output.shape == target.shape:
        return None
    return (
        f"the model's output is {list(output.shape[1:])} per row, and the label {list(target.shape[1:])}. This loss compares"
        " them element by element. Change the model's last layer, or the label column."
    )


def explain_error(error: Exception, module: nn.Module, inputs: Sequence[Any], fields: Sequence[Field]) -> str | None:
    """Return what is wrong with the inputs for which the model raised ``error``; None if unknown."""
    return (explain_shape(module, inputs, fields) if isinstance(error, RuntimeError) else None) or explain_type(
        error, inputs, fields
    )


def explain_type(error: Exception, inputs: Sequence[Any], fields: Sequence[Field]) -> str | None:
    """Return what is wrong with the type of an input. None: the model's ``error`` is not about types.

    :param inputs: the model's arguments.
    :param fields: the columns of the inputs.
    """
    if _TYPES.search(str(error)) is None or len(inputs) != len(fields):
        return None
    named = [(field, rows) for field, rows in zip(fields, inputs, strict=True) if isinstance(rows, torch.Tensor)]
    found = _find_used(error, named) or named
    if not found:
        return None
    passed_types = " or ".join(f"{field} as {_name(rows)}" for field, rows in found)
    advice = "set inputTypes, which has a type for each feature column"
    if len(found) == 1:
        bad_input = found[0][1]
        other_type = "int64" if bad_input.is_floating_point() else "float32"
        advice = f"set inputTypes to {[_name(rows) if rows is not bad_input else other_type for rows in inputs]}"
    return (
        f"the model does not take {passed_types}. A column is passed as float32, or as int64 if it holds integers"
        f" and the model has an Embedding: {advice}"
    )


def _find_used(error: Exception, named: Sequence[tuple[Field, torch.Tensor]]) -> list[tuple[Field, torch.Tensor]]:
    """Return the inputs that the innermost function using any of them has as local variables, or views of them."""
    trace = error.__traceback__
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        used = {_storage(value) for value in frame.f_locals.values() if isinstance(value, torch.Tensor)}
        found = [(field, rows) for field, rows in named if _storage(rows) in used]
        if found:
            return found
    return []


def _storage(tensor: torch.Tensor) -> int:
    return id(tensor) if tensor.is_sparse else tensor.untyped_storage().data_ptr()


def _name(rows: Any) -> str | None:
    """Return the input's type as ``inputTypes`` spells it. None: ``collate_fn`` made something other than a tensor."""
    return str(rows.dtype).removeprefix("torch.") if isinstance(rows, torch.Tensor) else None


def explain_shape(module: nn.Module, inputs: Sequence[Any], fields: Sequence[Field]) -> str | None:
    """Return what is wrong with the shape of the only input of a model whose first layer is linear or a convolution.

    None: nothing can be said without running the model.
    """
    if len(inputs) != 1:
        return None
    (rows,), (field,) = inputs, fields
    if not isinstance(rows, torch.Tensor):  # made by collate_fn
        return None
    name, first = first_layer(module)
    if isinstance(first, nn.Linear):
        fits, expected_shape = rows.shape[-1] == first.in_features, f"[…, {first.in_features}]"
    elif isinstance(first, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        sizes = ["length"] if isinstance(first, nn.Conv1d) else ["height", "width"]
        sizes = ["depth", *sizes] if isinstance(first, nn.Conv3d) else sizes
        fits = rows.dim() == 2 + len(sizes) and rows.shape[1] == first.in_channels
        expected_shape = f"[{first.in_channels}, {', '.join(sizes)}]"
    else:
        return None
    if fits:
        return None
    return (
        f"a row of {field} is {list(rows.shape[1:])}, and the model's first layer, {name or 'itself'} ({first}), takes"
        f" {expected_shape}: change the layer, or set inputShapes"
    )


def first_layer(module: nn.Module) -> tuple[str, nn.Module]:
    """Return the name and the module of the first layer without layers of its own."""
    return next((name, layer) for name, layer in module.named_modules() if next(layer.children(), None) is None)


#: Shape of the output for one row; by name if there are several tensors.
OutputShape: TypeAlias = "list[int] | dict[str, list[int]]"


def shape_of(output: Any, rows: int) -> OutputShape | None:
    """Return the shape of an output for one row; None if nothing in it has rows.

    :param output: the model's output: a tensor ``[rows, …]``, or a dict or tuple of such tensors. Other members (a
        loss, the state of a recurrent layer, None) are left out.
    """
    if isinstance(output, torch.Tensor):
        return list(output.shape[1:]) if output.dim() and len(output) == rows else None
    shapes = {name: shape_of(tensor, rows) for name, tensor in members(output).items()}
    return {name: shape for name, shape in shapes.items() if isinstance(shape, list)} or None


def shape_in_eval(run: Callable[[int], Any], module: torch.nn.Module) -> OutputShape | None:
    """Return the shape of a model's output in eval mode. None: nothing in it has rows, or the model fails in eval mode.

    A forward pass of one row and one of two rows distinguish a state ``[layers, rows, …]`` from a tensor with rows.

    :param run: returns the model's output for the given number of rows.
    """
    module.eval()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # this is not a training step: discard what the model prints
            one, two = shape_of(run(1), 1), shape_of(run(2), 2)
    except Exception as error:  # noqa: BLE001 - training has succeeded, whatever the user's model raises now
        print(f"The shape of the model's output in eval mode is unknown: {type(error).__name__}: {error}")
        return None
    if isinstance(one, dict) and isinstance(two, dict):
        return {name: shape for name, shape in two.items() if name in one} or None
    return two if isinstance(one, list) and isinstance(two, list) else None


def members(output: Any) -> dict[str, Any]:
    """Return the members of a dict or tuple by name; an empty dict for anything else."""
    if isinstance(output, Mapping):
        return {str(name): tensor for name, tensor in output.items()}
    return {f"output{i}": tensor for i, tensor in enumerate(output)} if isinstance(output, (tuple, list)) else {}
