"""A module whose trainable parameters, and their gradients, are views of two flat vectors.

What travels is then one range of memory, whatever the strategy, and nothing is copied to make it so.

A parameter that a step does not use has no gradient, and the optimizer must not touch it: no decay, no momentum. Ranks need
not tell each other which ones they used: an unused one has the gradient -0.0, a used one never, and a sum is -0.0 only where
all terms are. So whoever adds gradients up must begin with those of a rank, not with 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from sparkdl_comm.errors import ModelError

_ZERO = torch.zeros(())


@dataclass(frozen=True)
class Layer:
    """A leaf of the module that owns trainable parameters; they lie one after another, from element `start` on."""

    name: str
    start: int
    count: int


@dataclass(frozen=True)
class Piece:
    """`count` elements of the flat vector from `start` on, all of them of the parameter `owner`."""

    start: int
    count: int
    owner: nn.Parameter


@dataclass(frozen=True)
class _Slot:
    name: str
    parameter: nn.Parameter
    layer: int
    start: int

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        return flat[self.start : self.start + self.parameter.numel()].view(self.parameter.shape)


class FlatModel:
    """`module` with its trainable parameters laid out in the order of its layers.

    A parameter that several layers share lies with the first of them. Frozen parameters and buffers are left where they
    are.

    Raises ModelError if nothing is trainable, or if a trainable parameter is not float32 or has no shape yet.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layers: list[Layer] = []
        self._slots: list[_Slot] = []
        seen: set[int] = set()
        count = 0
        for layer_name, layer in module.named_modules():
            start = count
            for name, parameter in layer.named_parameters(prefix=layer_name, recurse=False):
                if not parameter.requires_grad or id(parameter) in seen:
                    continue
                if isinstance(parameter, nn.parameter.UninitializedParameter):
                    raise ModelError(
                        f"parameter {name} has no shape yet (a Lazy module): give the sizes, or call the module on an example"
                        " first"
                    )
                if parameter.dtype != torch.float32:
                    raise ModelError(
                        f"parameter {name} is {parameter.dtype}; parameters that are trained must be torch.float32"
                        " (call model.float(), or freeze it)"
                    )
                seen.add(id(parameter))
                if parameter.numel():
                    self._slots.append(_Slot(name, parameter, len(self.layers), count))
                    count += parameter.numel()
            if count > start:
                self.layers.append(Layer(layer_name, start, count - start))
        if not self.layers:
            raise ModelError(f"{type(module).__name__} has no trainable parameters (requires_grad) with elements")
        self.count = count
        #: The layer, its number in :attr:`layers`, with which each of :attr:`parameters` lies.
        self.layer_of_each = [slot.layer for slot in self._slots]
        self.values = torch.empty(0)
        self.gradients = torch.empty(0)
        #: Called in the backward pass with the number of each parameter (in :attr:`parameters`) whose gradient is there.
        self.on_gradient: Callable[[int], None] | None = None
        #: Numbers of the parameters whose gradients torch makes sparse: rows that a step does not use stay as they are.
        self.sparse = self._of_sparse_embeddings()
        #: Numbers of the parameters for which this rank's last step made no gradient.
        self._missing: set[int] = set()
        self._collectors: list[RemovableHandle] = []
        self._views: dict[int, list[torch.Tensor]] = {}

    def fingerprint(self) -> str:
        """SHA-256 over names, shapes and values: equal on all ranks that begin with the same model."""
        digest = hashlib.sha256()
        for slot in self._slots:
            digest.update(f"{slot.name} {tuple(slot.parameter.shape)}".encode())
            digest.update(slot.parameter.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def load(self, start: int, values: torch.Tensor) -> None:
        """Before :meth:`bind`: gives the parameters the elements from `start` on of the flat vector that they will be."""
        for slot in self._slots:
            begin = max(start, slot.start)
            end = min(start + len(values), slot.start + slot.parameter.numel())
            if begin < end:
                parameter = slot.parameter.data = slot.parameter.detach().contiguous()
                parameter.view(-1)[begin - slot.start : end - slot.start] = values[begin - start : end - start]

    def bind(self, values: torch.Tensor, gradients: torch.Tensor) -> None:
        """Moves the parameters into `values`, and has their gradients computed into `gradients`.

        Both: float32, `count` elements, on the module's device.
        """
        self.values, self.gradients = values, gradients
        for number, slot in enumerate(self._slots):
            parameter, view = slot.parameter, slot.view(values)
            with torch.no_grad():
                view.copy_(parameter)
            parameter.data = view
            collector = self._collector(number, slot.view(gradients))
            self._collectors.append(parameter.register_post_accumulate_grad_hook(collector))

    def move(self, values: torch.Tensor) -> None:
        """After :meth:`bind`: from now on the parameters are what `values` has, of the same form and device. Not between a
        forward pass and its backward pass."""
        views = self._views.setdefault(values.data_ptr(), [])
        if not views:
            views.extend(slot.view(values) for slot in self._slots)
        for slot, view in zip(self._slots, views, strict=True):
            slot.parameter.data = view
        self.values = values

    def release(self) -> None:
        """Gives the parameters memory of their own again, so that the flat vectors can go."""
        # Python does not find the circle of parameter, collector and model: it goes through torch's own code.
        for collector in self._collectors:
            collector.remove()
        self._collectors.clear()
        for slot in self._slots:
            slot.parameter.data = slot.parameter.detach().clone()
            slot.parameter.grad = None
        self._views.clear()
        self.values = self.gradients = torch.empty(0)

    def versions(self) -> list[int]:
        """Changes whenever autograd sees a parameter written in place."""
        return [slot.parameter._version for slot in self._slots]

    def not_finite(self, start: int, values: torch.Tensor) -> set[str]:
        """Names of the parameters with NaN or infinity among ``values``, the elements from ``start`` on of a flat vector."""
        finite = torch.isfinite(values)
        if finite.all():
            return set()
        pieces = self.cut(start, len(values))
        owners = {p.owner for p in pieces if not finite[p.start - start : p.start - start + p.count].all()}
        return {slot.name for slot in self._slots if slot.parameter in owners}

    def clear_gradients(self) -> None:
        """Call before the backward pass of a step."""
        for slot in self._slots:
            slot.parameter.grad = None
        self._missing.clear()

    def complete_gradients(self) -> None:
        """Call after the backward pass: what this step did not use on this rank gets the gradient that says so."""
        for number, slot in enumerate(self._slots):
            if slot.parameter.grad is None:
                slot.parameter.grad = slot.view(self.gradients).fill_(-0.0)
                self._missing.add(number)

    def is_unused(self, number: int, total: torch.Tensor) -> bool:
        """Whether no rank used a parameter in this step. ``total``: elements of its gradient, the sum over the ranks."""
        return number in self._missing and bool(_negative_zeros(total).all())

    def settle_gradients(self, sparse: bool) -> None:
        """Gives the optimizer what it would get in one process. :attr:`gradients` is the sum over the ranks.

        Parameters that no rank used have no gradient. ``sparse``: those of :attr:`sparse` have a sparse one, of the rows
        that some rank used.
        """
        for number, slot in enumerate(self._slots):
            total = slot.view(self.gradients)
            if self.is_unused(number, total):
                slot.parameter.grad = None
            elif sparse and number in self.sparse:
                rows = (~_negative_zeros(total).all(1)).nonzero().flatten()
                slot.parameter.grad = torch.sparse_coo_tensor(
                    rows[None], total[rows], total.shape, is_coalesced=True, check_invariants=False
                )

    def _of_sparse_embeddings(self) -> set[int]:
        weights = {
            id(part.weight)
            for part in self.module.modules()
            if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse
        }
        return {number for number, slot in enumerate(self._slots) if id(slot.parameter) in weights}

    def _collector(self, number: int, target: torch.Tensor) -> Callable[[nn.Parameter], None]:
        """Autograd hands over memory of its own; copying once is cheaper than zeroing `target` and accumulating into it."""

        def collect(parameter: nn.Parameter) -> None:
            gradient = parameter.grad
            if gradient is None:
                return
            if gradient.is_sparse:  # has no data_ptr
                if number not in self.sparse:
                    raise ModelError(
                        f"parameter {self._slots[number].name} gets a sparse gradient, and belongs to no nn.Embedding or"
                        " nn.EmbeddingBag with sparse=True: compute it without sparse=True"
                    )
                gradient = gradient.coalesce()
                target.fill_(-0.0)
                target[gradient.indices()[0]] = gradient.values() + _ZERO
                parameter.grad = target
            elif gradient.data_ptr() != target.data_ptr():
                torch.add(gradient, _ZERO, out=target)  # -0.0 becomes 0.0
                parameter.grad = target
            if self.on_gradient is not None:
                self.on_gradient(number)

        return collect

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable ones that have elements, in the order in which they lie."""
        return [slot.parameter for slot in self._slots]

    def stretch(self, layers: range) -> slice:
        """Where consecutive layers lie in the flat vectors."""
        last = self.layers[layers[-1]]
        return slice(self.layers[layers[0]].start, last.start + last.count)

    def cut(self, start: int, count: int) -> list[Piece]:
        """The range, cut where parameters end."""
        pieces = []
        for slot in self._slots:
            begin = max(start, slot.start)
            end = min(start + count, slot.start + slot.parameter.numel())
            if begin < end:
                pieces.append(Piece(begin, end - begin, slot.parameter))
        return pieces


def _negative_zeros(values: torch.Tensor) -> torch.Tensor:
    return (values == 0) & values.signbit()
