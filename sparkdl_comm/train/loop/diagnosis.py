"""What is wrong where model, loss and rows do not fit together, in terms of what the user set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from sparkdl_comm.data.cache import RowCache
from sparkdl_comm.data.fields import Field
from sparkdl_comm.errors import InputError, ModelError

#: Losses that compare output and labels one by one: labels are float32 whatever the column's type.
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


#: What torch says where an input is of a type that a layer does not take.
_TYPES = re.compile(
    r"scalar type|dtype|[Ii]nput type|index tensor of type|used as indices must be|not implemented for '(Long|Float)'"
)


@dataclass(frozen=True)
class ClassLabels:
    """Labels of a loss over classes must be 0 to the number of classes less one, or ``ignored``. ``column``: for messages.

    torch would say which label, but neither how many nor of which column; on a GPU it would end the process.
    """

    column: Field
    ignored: int | None = None

    def check(self, output: Any, parts: Sequence[RowCache], rank: int) -> None:
        """Looks whether the labels are classes of the model.

        :param output: the model's for a batch: ``[rows, classes, …]``. ``parts``: all rows of this rank.
        :raises InputError: some labels are none of the classes; says of how many rows.
        :raises ModelError: the shapes do not fit.
        """
        shape = parts[0].targets[0].shape[1:]
        if not isinstance(output, torch.Tensor) or output.dim() < 2 or output.shape[2:] != shape:
            given = list(output.shape[1:]) if isinstance(output, torch.Tensor) else f"a {type(output).__name__}"
            raise ModelError(
                f"a loss over classes takes [classes{''.join(f', {length}' for length in shape)}] per row, for the labels in"
                f" {self.column}; the model's output is {given}"
            )
        classes = output.shape[1]
        rows = bad = 0
        found: list[torch.Tensor] = []
        for part in parts:
            (labels,) = part.targets
            outside = (labels < 0) | (labels >= classes)
            if self.ignored is not None:
                outside &= labels != self.ignored
            bad += int(outside.flatten(1).any(1).sum()) if outside.dim() > 1 else int(outside.sum())
            rows += part.rows
            found.append(labels[outside])
        if bad:
            raise InputError(
                f"{bad} of {rows} rows of rank {rank} have a label outside of 0 to {classes - 1} in {self.column}, such as"
                f" {torch.cat(found)[0]}: the model's output has {classes} classes",
                rank=rank,
            )


def compares_values(loss: Any) -> bool:
    """Whether this is a loss of torch.nn, or a function of torch.nn.functional, that compares one by one."""
    return isinstance(loss, _VALUE_LOSSES) or getattr(loss, "func", loss) in _VALUE_FUNCTIONS


def mismatch(loss: Any, output: Any, target: Any) -> str | None:
    """What is wrong with the output's shape for a loss that compares one by one, where torch would broadcast; or None."""
    if not compares_values(loss) or not isinstance(output, torch.Tensor) or not isinstance(target, torch.Tensor):
        return None
    if output.shape == target.shape:
        return None
    return (
        f"the model's output is {list(output.shape[1:])} per row, and the label {list(target.shape[1:])}; this loss compares"
        " them one by one: change the model's last layer, or the label column"
    )


def problem_of(error: Exception, module: nn.Module, inputs: Sequence[Any], fields: Sequence[Field]) -> str | None:
    """Return what is wrong with the inputs with which the model raised ``error``; None: nothing that is known."""
    return (misfit(module, inputs, fields) if isinstance(error, RuntimeError) else None) or mistyped(
        error, inputs, fields
    )


def mistyped(error: Exception, inputs: Sequence[Any], fields: Sequence[Field]) -> str | None:
    """Return what is wrong with the type of an input, where ``error``, which the model raised, is about types; else None.

    :param inputs: what the model was called with; ``fields``: the columns that they were made of.
    """
    if _TYPES.search(str(error)) is None or len(inputs) != len(fields):
        return None
    named = [(field, rows) for field, rows in zip(fields, inputs, strict=True) if isinstance(rows, torch.Tensor)]
    found = _used_by(error, named) or named
    if not found:
        return None
    come = " or ".join(f"{field} as {_name(rows)}" for field, rows in found)
    advice = "set inputTypes, which has a type for each feature column"
    if len(found) == 1:
        wrong = found[0][1]
        other = "int64" if wrong.is_floating_point() else "float32"
        advice = f"set inputTypes to {[_name(rows) if rows is not wrong else other for rows in inputs]}"
    return (
        f"the model does not take {come}. A column comes as float32, or, if the model has an Embedding and the column holds"
        f" integers, as int64: {advice}"
    )


def _used_by(error: Exception, named: Sequence[tuple[Field, torch.Tensor]]) -> list[tuple[Field, torch.Tensor]]:
    """The inputs that the innermost function with one of them as a local variable has, itself or a view of it."""
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
    """Its type, as ``inputTypes`` has it; None: ``collate_fn`` has made something else of the column."""
    return str(rows.dtype).removeprefix("torch.") if isinstance(rows, torch.Tensor) else None


def misfit(module: nn.Module, inputs: Sequence[Any], fields: Sequence[Field]) -> str | None:
    """What is wrong with the shape of the one input of a model whose first layer is linear or a convolution; None: nothing
    that can be said without running the model."""
    if len(inputs) != 1:
        return None
    (rows,), (field,) = inputs, fields
    if not isinstance(rows, torch.Tensor):  # what collate_fn made
        return None
    named = ((name, layer) for name, layer in module.named_modules() if next(layer.children(), None) is None)
    name, first = next(named)
    if isinstance(first, nn.Linear):
        fits, wanted = rows.shape[-1] == first.in_features, f"[…, {first.in_features}]"
    elif isinstance(first, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        sizes = ["length"] if isinstance(first, nn.Conv1d) else ["height", "width"]
        sizes = ["depth", *sizes] if isinstance(first, nn.Conv3d) else sizes
        fits = rows.dim() == 2 + len(sizes) and rows.shape[1] == first.in_channels
        wanted = f"[{first.in_channels}, {', '.join(sizes)}]"
    else:
        return None
    if fits:
        return None
    return (
        f"a row of {field} is {list(rows.shape[1:])}, and the model's first layer, {name or 'itself'} ({first}), takes"
        f" {wanted}: change the layer, or set inputShapes"
    )
