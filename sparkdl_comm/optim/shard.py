"""Shard of a sharded strategy: the stripes of the parameters that one rank updates, with the user's optimizer."""

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
    """Part of the parameter with the number ``owner``, from element ``start`` of the flat vector on."""

    owner: int
    start: int
    values: torch.nn.Parameter
    gradient: torch.Tensor


class Shard:
    """Ranges of the flat vector, and the optimizer over them.

    An optimizer that needs norms of whole parameters gets them by an all-gather in each step.

    ``owned``: (first element, exact values, float32 ``[n]``). ``gradients``: gradients of the same ranges.
    ``can_step_in_parts``: True if :meth:`step_range` may be used. It is for torch's optimizers, which keep all state per
    parameter; others may count their steps.

    :raises ModelError: the optimizer is neither elementwise nor layer-wise.
    """

    def __init__(
        self,
        model: FlatModel,
        owned: Sequence[tuple[int, torch.Tensor]],
        gradients: torch.Tensor,
        make_optimizer: OptimizerMaker,
        ranks: Ranks,
    ) -> None:
        """Create the optimizer over the ranges.

        :param gradients: flat gradients of the whole model. The sums for the shard's ranges are written there.
        :param ranks: ranks whose shards make up the whole vector.
        """
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
        if make_optimizer.needs_sparse(self.optimizer):
            raise ModelError(
                f"optimizer {type(self.optimizer).__name__} updates single rows of an Embedding with sparse=True, but ranks"
                f" update stripes that cut through rows. Set sparse=False. {elementwise.HINT}"
            )
        self.can_step_in_parts = type(self.optimizer).__module__.startswith("torch.optim.")

    @property
    def stripes(self) -> list[tuple[int, torch.nn.Parameter]]:
        """Stripes that the optimizer updates: (first element in the flat vector, flat stripe of a parameter)."""
        return [(stripe.start, stripe.values) for stripe in self._stripes]

    def step(self) -> None:
        """Run the optimizer's step on all stripes."""
        self.step_range(slice(0, self._model.count))

    def step_range(self, elements: slice) -> None:
        """Run the optimizer's step on a range of the flat vector, whose gradients are summed already.

        The range ends at the end of a parameter. Ranges that cover the whole vector make up a whole step.
        """
        for stripe in self._stripes:
            is_in_range = elements.start <= stripe.start < elements.stop
            is_due = is_in_range and not self._model.is_unused(stripe.owner, stripe.gradient)
            stripe.values.grad = stripe.gradient if is_due else None
        self.optimizer.step()
