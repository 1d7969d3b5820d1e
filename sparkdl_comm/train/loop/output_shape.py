"""The shape of what a model returns, seen in its first batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

#: Shape of the output for one row; by name, if there are several tensors.
OutputShape: TypeAlias = "list[int] | dict[str, list[int]]"


def shape_of(output: Any) -> OutputShape | None:
    """Shape of what a model returned, for one row; None if it is not made of tensors with rows."""
    if isinstance(output, torch.Tensor):
        return list(output.shape[1:]) if output.dim() else None
    shapes = {name: shape_of(tensor) for name, tensor in members(output).items()}
    return {name: shape for name, shape in shapes.items() if isinstance(shape, list)} or None


def members(output: Any) -> dict[str, Any]:
    """The tensors of a dict, or of a tuple, by name; nothing for anything else."""
    if isinstance(output, Mapping):
        return {str(name): tensor for name, tensor in output.items()}
    return {f"output{i}": tensor for i, tensor in enumerate(output)} if isinstance(output, (tuple, list)) else {}
