"""Conversion of a model's outputs to the columns of Spark ML: prediction, rawPrediction and probability.

The loss and the shape of the output decide the kind of a model:

=====================  ==================  ==========================  =============  =======================
loss                   output per row      rawPrediction               probability    prediction
=====================  ==================  ==========================  =============  =======================
CrossEntropyLoss       k values            the output                  softmax        index of the largest
NLLLoss                k values            the output (logarithms)     exp            index of the largest
MultiMarginLoss, or    k values            the output                  none           index of the largest
your own loss with
integral labels
BCEWithLogitsLoss      one value z         (-z, z)                     (1 - s, s),    1 where s > 0.5
                                                                       s = sigmoid z
BCELoss                one value p         (1 - p, p)                  (1 - p, p)     1 where p > 0.5
any other              one value           none                        none           the value
any other              several values      none                        none           the values, flattened
any                    several tensors     none                        none           a struct of the tensors
=====================  ==================  ==========================  =============  =======================

Several tensors are a dict, or a tuple with members named ``output0``, ``output1`` and so on. A member is one value or
several, flattened. Members without a row for each input row (a loss, a state, None) are left out. If an output has
the attribute ``logits``, as Hugging Face's ModelOutput has, the logits are the output.

Functions of ``torch.nn.functional`` count as the loss classes with the same formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F

from sparkdl_comm.errors import ModelError
from sparkdl_comm.train.diagnosis import OutputShape, members

#: Function from a classifier's outputs to probabilities. ``identity``: the outputs are probabilities.
Activation = Literal["softmax", "exp", "sigmoid", "identity"]
#: Kind of a model. ``classes``: one score per class. ``binary``: one score, for class 1. ``value``, ``vector``: one value or
#: several, not a classifier. ``struct``: several tensors.
Kind = Literal["classes", "binary", "value", "vector", "struct"]

RAW, PROBABILITY, PREDICTION = "rawPrediction", "probability", "prediction"

_MODULES: tuple[tuple[type[torch.nn.Module], Activation], ...] = (
    (torch.nn.CrossEntropyLoss, "softmax"),
    (torch.nn.NLLLoss, "exp"),
    (torch.nn.BCEWithLogitsLoss, "sigmoid"),
    (torch.nn.BCELoss, "identity"),
)
_FUNCTIONS: tuple[tuple[Any, Activation], ...] = (
    (F.cross_entropy, "softmax"),
    (F.nll_loss, "exp"),
    (F.binary_cross_entropy_with_logits, "sigmoid"),
    (F.binary_cross_entropy, "identity"),
)


def activation_of(loss: Any) -> Activation | None:
    """Return the activation for the outputs of a model trained with ``loss``; None if unknown."""
    for kind, activation in _MODULES:
        if isinstance(loss, kind):
            return activation
    function = getattr(loss, "func", loss)  # of a functools.partial
    return next((activation for known, activation in _FUNCTIONS if known is function), None)


def members_of(output_shape: OutputShape | None) -> dict[str, Kind]:
    """Return the kinds of a struct's members by name; an empty dict for other outputs."""
    return (
        {name: _kind_of_tensor(shape) for name, shape in output_shape.items()} if isinstance(output_shape, dict) else {}
    )


def _kind_of_tensor(shape: list[int]) -> Kind:
    return "value" if math.prod(shape) == 1 else "vector"


def kind_of(classification: bool, activation: Activation | None, output_shape: OutputShape | None) -> Kind:
    """Return the kind of a model; see the table of this module.

    :param classification: labels were classes.
    :param output_shape: of the output for one row. None: unknown; then it is one value, or several if labels were
        classes.
    """
    if isinstance(output_shape, dict):
        return "struct"
    size = math.prod(output_shape or ())
    if activation in ("sigmoid", "identity") and size == 1:
        return "binary"
    if classification and (output_shape is None or (size > 1 and len(output_shape) == 1)):
        return "classes"
    return _kind_of_tensor(output_shape or [])


_PROBABILITIES: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda scores: scores.softmax(1),
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "identity": lambda scores: scores,
}


def columns_of(kind: Kind, activation: Activation | None) -> tuple[str, ...]:
    """Return the columns that a model of this kind adds, in Spark ML's order.

    :raises ModelError: there is no such activation.
    """
    if activation is not None and activation not in _PROBABILITIES:
        raise ModelError(f"model.activation is {activation!r}; it must be None or one of {', '.join(_PROBABILITIES)}")
    if kind in ("value", "vector", "struct"):
        return (PREDICTION,)
    return (RAW, PROBABILITY, PREDICTION) if activation is not None else (RAW, PREDICTION)


@dataclass(frozen=True)
class Scoring:
    """Converter of outputs to columns.

    ``columns``: the requested columns of :func:`columns_of`, in that order. ``members``: kinds (``value`` or
    ``vector``) of a struct's members by name.
    """

    kind: Kind
    activation: Activation | None
    columns: tuple[str, ...]
    members: Mapping[str, Kind] = field(default_factory=dict)

    def select(self, output: Any) -> Any:
        """Return the part of the output that columns need: the members of a struct by name, else the whole output.

        :raises ModelError: a member is missing.
        """
        if self.kind != "struct":
            return output
        available = members(output)
        missing = [name for name in self.members if name not in available]
        if missing:
            raise ModelError(
                f"the model must return {list(self.members)}, as in training; it returned {list(available)}"
            )
        return {name: available[name] for name in self.members}

    def __call__(self, output: Any, rows: int) -> list[torch.Tensor]:
        """Return the columns for some rows, on the CPU.

        :param output: return value of :meth:`select`.
        :return: one tensor per column: float64 ``[rows]``, or ``[rows, classes]`` for RAW and PROBABILITY. The
            prediction of a ``vector`` is float32 ``[rows, values]``. A ``struct`` gives one tensor per member.
        :raises ModelError: the output does not have one row per input row, or is a vector where a number was expected,
            or vice versa.
        """
        if self.kind == "struct":
            return list(self._of_members(output, rows))
        if not isinstance(output, torch.Tensor) or output.dim() == 0 or output.shape[0] != rows:
            got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
            raise ModelError(f"the model must return a tensor with one row per row of input, {rows}; it returned {got}")
        output = output.reshape(rows, -1)
        width = output.shape[1]
        if self.kind in ("value", "binary") and width != 1:
            raise ModelError(
                f"the model returned {width} values per row, but one was expected. Set "
                f"model.output_shape = [{width}] to get them as an array"
            )
        if self.kind == "vector":
            return [output.float().cpu()]
        if self.kind == "value":
            return [output[:, 0].double().cpu()]
        if width == 1 and self.kind == "classes":
            raise ModelError(
                "the model returned one value per row, but one per class was expected. Set "
                "model.output_shape = [1] to get it as the prediction"
            )
        return [column.double().cpu() for column in self._classify(output)]

    def _of_members(self, outputs: dict[str, Any], rows: int) -> Iterator[torch.Tensor]:
        for name, kind in self.members.items():
            yield from Scoring(kind, None, (PREDICTION,))(outputs[name], rows)

    def _classify(self, scores: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the columns of a classifier from ``[rows, classes]``, or from ``[rows, 1]`` if it is binary."""
        if self.kind == "binary":  # make scores of two classes
            scores = torch.cat([1 - scores if self.activation == "identity" else -scores, scores], 1)
        for column in self.columns:
            if column == RAW:
                yield scores
            elif column == PROBABILITY and self.activation is not None:
                yield _PROBABILITIES[self.activation](scores.double())
            elif column == PREDICTION:
                yield scores.argmax(1)
