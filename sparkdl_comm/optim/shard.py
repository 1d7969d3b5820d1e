"""What one rank of a sharded strategy updates: its stripes of the parameters, with the user's optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparkdl_comm.errors import ModelError
from sparkdl_comm.optim import elementwise
from sparkdl_comm.optim.layerwise import Layerwise
from sparkdl_comm.optim.norms import StripedNorms
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.optim.parallel import Ranks
from sparkdl_comm.space.flat import FlatModel


@dataclass(frozen=True)
class _Stripe:
    """A part of the parameter with the number ``owner``, from element ``start`` of the flat vector on."""

    owner: int
    start: int
    values: torch.nn.Parameter
    gradient: torch.Tensor


class Shard:
    """Ranges of the flat vector, and the optimizer over them. One that needs norms of whole parameters gets them, by an
    all-gather in each of its steps.

    ``owned``: (first element, exact values, float32 ``[n]``); ``gradients``: of the same ranges.
    ``in_parts``: :meth:`step_stretch` may be used. Optimizers of torch keep all of their state per parameter; others may
    count their steps.

    :raises ModelError: the optimizer is not elementwise, but for norms.
    """

    def __init__(
        self,
        model: FlatModel,
        owned: Sequence[tuple[int, torch.Tensor]],
        gradients: torch.Tensor,
        make_optimizer: OptimizerMaker,
        ranks: Ranks,
    ) -> None:
        """``gradients``: flat, of the whole model, where the sums for the shard's ranges will be. ``ranks``: those whose
        shards make the whole vector."""
        self._model = model
        elementwise.check(model, make_optimizer)
        self.owned = list(owned)
        self.gradients = [gradients[start : start + len(values)] for start, values in self.owned]
        self._stripes = []
        tensors = []
        for start, values in self.owned:
            for cut in model.cut(start, len(values)):
                stripe = torch.nn.Parameter(values[cut.start - start : cut.start - start + cut.count])
                stripe.grad = gradients[cut.start : cut.start + cut.count]
                self._stripes.append(_Stripe(cut.number, cut.start, stripe, stripe.grad))
                tensors.append((model.parameters[cut.number], stripe))
        self.optimizer = make_optimizer(tensors)
        if isinstance(self.optimizer, Layerwise):
            numbers = {id(stripe.values): stripe.owner for stripe in self._stripes}
            self.optimizer.norms = StripedNorms(numbers, len(model.parameters), ranks)
        if make_optimizer.wants_sparse(self.optimizer):
            raise ModelError(
                f"optimizer {type(self.optimizer).__name__} treats the rows of an Embedding with sparse=True apart, and ranks"
                f" update stripes that cut through rows: set sparse=False. {elementwise.HINT}"
            )
        self.in_parts = type(self.optimizer).__module__.startswith("torch.optim.")

    @property
    def stripes(self) -> list[tuple[int, torch.nn.Parameter]]:
        """What the optimizer has: (first element in the flat vector, flat stripe of a parameter)."""
        return [(stripe.start, stripe.values) for stripe in self._stripes]

    def step(self) -> None:
        """The optimizer's step on all of it."""
        self.step_stretch(slice(0, self._model.count))

    def step_stretch(self, stretch: slice) -> None:
        """The optimizer's step on what lies in this stretch of the flat vector, which ends where parameters do and whose
        gradients are summed. Stretches that cover the vector make a whole step."""
        for stripe in self._stripes:
            here = stretch.start <= stripe.start < stretch.stop
            due = here and not self._model.is_unused(stripe.owner, stripe.gradient)
            stripe.values.grad = stripe.gradient if due else None
        self.optimizer.step()
