"""Shape of a model's output: of the tensors that have one row for each input row."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

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
