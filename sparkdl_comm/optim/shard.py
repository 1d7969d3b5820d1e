"""Shard of a sharded strategy: stripes of parameters that one rank updates. And optimizer state that fits other stripes."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparkdl_comm.errors import ModelError
from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim import elementwise
from sparkdl_comm.optim.layerwise import Layerwise, StripedNorms
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

    ``owned``: (first element, unrounded values, float32 ``[n]``). ``gradients``: gradients of the same ranges.

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

    @property
    def stripes(self) -> list[tuple[int, torch.nn.Parameter]]:
        """Stripes that the optimizer updates: (first element in the flat vector, flat stripe of a parameter)."""
        return [(stripe.start, stripe.values) for stripe in self._stripes]

    def step(self) -> None:
        """Run the optimizer's step on all stripes."""
        self.step_range(slice(0, self._model.count))

    def step_range(self, elements: slice) -> None:
        """Run the optimizer's step on a range of the flat vector, whose gradients are summed already.

        The range ends at the end of a parameter. Ranges that cover the whole vector make up a whole step. Only for
        optimizers that do not need all gradients (:attr:`OptimizerMaker.needs_all_gradients`).
        """
        for stripe in self._stripes:
            is_in_range = elements.start <= stripe.start < elements.stop
            is_due = is_in_range and not self._model.is_unused(stripe.owner, stripe.gradient)
            stripe.values.grad = stripe.gradient if is_due else None
        self.optimizer.step()


#: Parameters of an optimizer: (first element in the flat vector, whole parameter or flat stripe of one).
Stripes = Sequence[tuple[int, torch.nn.Parameter]]
#: All-reduces (sums) a float32 vector of the model's length over all ranks, in place.
AllReduce = Callable[[torch.Tensor], None]


@dataclass(frozen=True)
class WholeState:
    """Optimizer state laid out for the whole model: the part of one rank, or the combined state of all ranks.

    Training can continue from it with other stripes per rank. For each parameter, an elementwise optimizer keeps state
    tensors of the parameter's shape, and scalars such as its step count. The state tensors are stored in flat vectors,
    which have an element for each element of the model. All stripes of a parameter have the same scalars.

    :param options: options of the optimizer's parameter groups.
    :param vectors: flat vectors of state tensors by name, such as ``exp_avg``, float32 ``[count]`` each. Elements are
        -0.0 where this rank has no values.
    :param parameters: a dict for each parameter, by the parameter's index. Its entry ``vectors`` lists the names of the
        parameter's state tensors. Its entry ``numbers`` has the scalars by name, such as ``step``. JSON-able.
    """

    options: list[dict[str, Any]]
    vectors: dict[str, torch.Tensor]
    parameters: dict[int, dict[str, Any]]

    @classmethod
    def of(cls, model: FlatModel, stripes: Stripes, optimizer: torch.optim.Optimizer) -> WholeState:
        """Return this rank's part of the state.

        :raises ModelError: the optimizer keeps state of another form.
        """
        vectors: dict[str, torch.Tensor] = {}
        parameters: dict[int, dict[str, Any]] = {}
        kept = [(start, stripe, optimizer.state[stripe]) for start, stripe in stripes if optimizer.state.get(stripe)]
        single = {
            name
            for _, stripe, state in kept
            for name, value in state.items()
            if not isinstance(value, torch.Tensor) or value.shape != stripe.shape
        }
        for start, stripe, state in kept:
            numbers = {name: _number(optimizer, name, state[name]) for name in state if name in single}
            for name in state.keys() - single:
                if state[name].dtype != torch.float32:
                    raise _unsupported(optimizer, name, state[name])
                if name not in vectors:
                    vectors[name] = model.values.new_full((model.count,), -0.0)
                vectors[name][start : start + stripe.numel()] = state[name].reshape(-1)
            parameters[_owner(model, start)] = {"vectors": sorted(state.keys() - single), "numbers": numbers}
        return cls(_options_of(optimizer), vectors, parameters)

    @classmethod
    def from_checkpoint(cls, model: FlatModel, stored: dict[str, Any]) -> WholeState:
        """Return the state from what :meth:`to_checkpoint` returned, on a rank with the same or other stripes."""
        vectors = {}
        for name, packed in stored["vectors"].items():
            vectors[name], offset = model.values.new_full((model.count,), -0.0), 0
            for start, count in stored["stripes"]:
                vectors[name][start : start + count] = packed[offset : offset + count]
                offset += count
        return cls(stored["options"], vectors, {int(number): kept for number, kept in stored["parameters"].items()})

    def to_checkpoint(self, stripes: Stripes) -> dict[str, Any]:
        """Return the state for a checkpoint: numbers, strings, tensors, and lists and dicts of these."""
        ranges = [(start, stripe.numel()) for start, stripe in stripes]
        empty = torch.empty(0)
        vectors = {
            name: torch.cat([empty.to(vector.device), *(vector[start : start + count] for start, count in ranges)])
            for name, vector in self.vectors.items()
        }
        parameters = {str(number): kept for number, kept in self.parameters.items()}
        return {"options": self.options, "stripes": ranges, "vectors": vectors, "parameters": parameters}

    def gather(self, gang: Gang, model: FlatModel, all_reduce: AllReduce, timeout: float) -> WholeState:
        """Return the combined state of all ranks, which have different stripes. All ranks call it.

        It takes an all-gather of a few numbers per parameter, and an all-reduce per vector, in which -0.0 changes no
        bit.
        """
        parameters: dict[int, dict[str, Any]] = {}
        for entry in gather_json(gang, {str(number): kept for number, kept in self.parameters.items()}, timeout):
            parameters |= {int(number): kept for number, kept in entry.items()}
        vectors = {}
        for name in sorted({name for kept in parameters.values() for name in kept["vectors"]}):
            vectors[name] = self.vectors.get(name, model.values.new_full((model.count,), -0.0))
            all_reduce(vectors[name])
        return WholeState(self.options, vectors, parameters)

    def load_into(self, model: FlatModel, stripes: Stripes, optimizer: torch.optim.Optimizer) -> None:
        """Load this state into ``optimizer``, which has made no step, for these stripes."""
        _set_options(optimizer, self.options)
        for start, stripe in stripes:
            kept = self.parameters.get(_owner(model, start))
            if kept is None:
                continue
            state = {name: _value(entry, stripe) for name, entry in kept["numbers"].items()}
            for name in kept["vectors"]:
                part = self.vectors[name][start : start + stripe.numel()]
                state[name] = torch.empty_like(stripe.detach()).copy_(part.view(stripe.shape))
            optimizer.state[stripe] = state


def _options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of the optimizer's groups, such as learning rates."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def _set_options(optimizer: torch.optim.Optimizer, options: Sequence[dict[str, Any]]) -> None:
    """Set the options of the optimizer's groups. ``options``: one entry per group, made by :func:`_options_of`."""
    for group, given in zip(optimizer.param_groups, options, strict=True):
        group.update(given)


def _owner(model: FlatModel, start: int) -> int:
    """Return the number of the parameter that contains element ``start``."""
    return bisect.bisect_right(model.entries, start, key=lambda entry: entry.start) - 1


def _number(optimizer: torch.optim.Optimizer, name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        dtype = str(value.dtype).removeprefix("torch.")
        return {"value": value.item(), "dtype": dtype, "shape": list(value.shape), "near": value.device.type != "cpu"}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise _unsupported(optimizer, name, value)


def _value(entry: dict[str, Any], stripe: torch.Tensor) -> Any:
    if "dtype" not in entry:
        return entry["value"]
    device = stripe.device if entry["near"] else "cpu"
    return torch.full(entry["shape"], entry["value"], dtype=getattr(torch, entry["dtype"]), device=device)


def _unsupported(optimizer: torch.optim.Optimizer, name: str, value: Any) -> ModelError:
    description = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
    return ModelError(
        f"optimizer {type(optimizer).__name__} keeps {name!r} of a parameter, {description}. It must be a number, or"
        " float32 of the parameter's shape."
    )
