"""Call of the model with the arguments that a ``collate_fn`` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch


class Arguments:
    """Positional and keyword arguments for the model's ``forward``, returned by a ``collate_fn``.

    ``Arguments(padded, lengths)`` calls ``model(padded, lengths)``. ``Arguments(**encoded)`` calls
    ``model(**encoded)``.

    ``positional``: tuple of the positional arguments. ``keywords``: keyword arguments by name.
    """

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        self.positional = positional
        self.keywords = keywords


def call(module: Callable[..., Any], inputs: Iterable[Any]) -> Any:
    """Call ``module`` with the inputs of a batch and return its output.

    If the output is a mapping with a tensor ``logits``, such as a Hugging Face ModelOutput, return the logits.

    :param inputs: one per feature column, in order: a tensor ``[rows, …]``, or the return value of ``collate_fn``.
    :raises TypeError: two columns give the same keyword, or the arguments do not match the signature of ``forward``.
    """
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument in inputs:
        if not isinstance(argument, Arguments):
            positional.append(argument)
            continue
        duplicates = sorted(set(keywords) & set(argument.keywords))
        if duplicates:
            raise TypeError(
                f"collate_fn returned Arguments({duplicates[0]}=...) for two feature columns, but forward takes it once."
                f" Return {duplicates[0]} by position: forward gets the positional arguments of all columns in order"
            )
        positional += argument.positional
        keywords |= argument.keywords
    output = module(*positional, **keywords)
    logits = getattr(output, "logits", None) if isinstance(output, Mapping) else None
    return logits if isinstance(logits, torch.Tensor) else output
