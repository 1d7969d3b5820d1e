"""What is wrong where model, loss and rows do not fit together, in terms of what the user set."""

from __future__ import annotations

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
