"""Arguments that a ``collate_fn`` makes for the model's forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch


class Arguments:
    """Positional and keyword arguments that the model is called with, in place of one value.

    A ``collate_fn`` returns it: ``Arguments(padded, lengths)`` calls ``model(padded, lengths)``, and
    ``Arguments(**encoded)`` calls ``model(**encoded)``.

    ``positional``: the former, a tuple. ``keywords``: the latter, by name.
    """

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        self.positional = positional
        self.keywords = keywords


def call(module: Callable[..., Any], inputs: Iterable[Any]) -> Any:
    """Call ``module`` with the inputs of a batch, and return its output.

    Of an output with a tensor ``logits`` beside other values, as the ModelOutput of Hugging Face, return the logits.

    :param inputs: one per feature column, in order: a tensor ``[rows, …]``, or what ``collate_fn`` made.
    :raises TypeError: two columns give the same keyword, or as Python does for arguments that do not fit.
    """
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for each in inputs:
        if not isinstance(each, Arguments):
            positional.append(each)
            continue
        twice = sorted(set(keywords) & set(each.keywords))
        if twice:
            raise TypeError(
                f"two feature columns give the argument {twice[0]!r}: have collate_fn name them differently"
            )
        positional += each.positional
        keywords |= each.keywords
    output = module(*positional, **keywords)
    logits = getattr(output, "logits", None) if isinstance(output, Mapping) else None
    return logits if isinstance(logits, torch.Tensor) else output
