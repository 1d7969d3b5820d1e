"""A module whose trainable parameters, and their gradients, are views of two flat vectors: nothing is copied to send them.

A parameter that a step does not use has no gradient, and the optimizer must not touch it: no decay, no momentum. Ranks need
not tell each other which ones they used: an unused one has the gradient -0.0, a used one never, and a sum is -0.0 only where
all terms are. So whoever adds gradients up must begin with those of a rank, not with 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from sparkdl_comm.errors import ModelError
from sparkdl_comm.space.parameter_space import ParameterSpace

_ZERO = torch.zeros(())


class FlatModel(ParameterSpace):
    """``module`` and the space of its trainable parameters, in the order of its layers: the leaves that own some.

    A parameter that several layers share lies with the first of them. Frozen parameters and buffers are left where they
    are.

    :raises ModelError: nothing is trainable, or a trainable parameter is not float32 or has no shape yet.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        found = _trainable(module)
        super().__init__({name: parameter.shape for name, parameter in found.items()})
        if not self.layers:
            raise ModelError(f"{type(module).__name__} has no trainable parameters (requires_grad) with elements")
        #: The trainable ones that have elements, one for each of :attr:`entries`.
        self.parameters = [found[entry.name] for entry in self.entries]
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
        for entry, parameter in zip(self.entries, self.parameters, strict=True):
            digest.update(f"{entry.name} {entry.shape}".encode())
            digest.update(parameter.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def load(self, start: int, values: torch.Tensor) -> None:
        """Before :meth:`bind`: gives the parameters the elements from ``start`` on of the flat vector that they will be."""
        for piece in self.cut(start, len(values)):
            parameter, first = self.parameters[piece.number], self.entries[piece.number].start
            parameter.data = parameter.detach().contiguous()
            given = values[piece.start - start : piece.start - start + piece.count]
            parameter.data.view(-1)[piece.start - first : piece.start - first + piece.count] = given

    def bind(self, values: torch.Tensor, gradients: torch.Tensor) -> None:
        """Moves the parameters into ``values``, and has their gradients computed into ``gradients``.

        Both: float32, ``count`` elements, on the module's device.
        """
        self.values, self.gradients = values, gradients
        views = zip(self.parameters, self.views(values), self.views(gradients), strict=True)
        for number, (parameter, view, gradient) in enumerate(views):
            with torch.no_grad():
                view.copy_(parameter)
            parameter.data = view
            collector = self._collector(number, gradient)
            self._collectors.append(parameter.register_post_accumulate_grad_hook(collector))

    def move(self, values: torch.Tensor) -> None:
        """After :meth:`bind`: from now on the parameters are what ``values`` has, of the same form and device. Not between a
        forward pass and its backward pass."""
        views = self._views.setdefault(values.data_ptr(), [])
        if not views:
            views.extend(self.views(values))
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view
        self.values = values

    def release(self) -> None:
        """Gives the parameters memory of their own again, so that the flat vectors can go."""
        # Python does not find the circle of parameter, collector and model: it goes through torch's own code.
        for collector in self._collectors:
            collector.remove()
        self._collectors.clear()
        for parameter in self.parameters:
            parameter.data = parameter.detach().clone()
            parameter.grad = None
        self._views.clear()
        self.values = self.gradients = torch.empty(0)

    def versions(self) -> list[int]:
        """Changes whenever autograd sees a parameter written in place."""
        return [parameter._version for parameter in self.parameters]

    def clear_gradients(self) -> None:
        """Call before the backward pass of a step."""
        for parameter in self.parameters:
            parameter.grad = None
        self._missing.clear()

    def complete_gradients(self) -> None:
        """Call after the backward pass: what this step did not use on this rank gets the gradient that says so."""
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                parameter.grad = self.entries[number].view(self.gradients).fill_(-0.0)
                self._missing.add(number)

    def is_unused(self, number: int, total: torch.Tensor) -> bool:
        """Whether no rank used a parameter in this step. ``total``: elements of its gradient, the sum over the ranks."""
        return number in self._missing and bool(_negative_zeros(total).all())

    def settle_gradients(self, sparse: bool) -> None:
        """Gives the optimizer what it would get in one process. :attr:`gradients` is the sum over the ranks.

        Parameters that no rank used have no gradient. ``sparse``: those of :attr:`sparse` have a sparse one, of the rows
        that some rank used.
        """
        for number, (parameter, total) in enumerate(zip(self.parameters, self.views(self.gradients), strict=True)):
            if self.is_unused(number, total):
                parameter.grad = None
            elif sparse and number in self.sparse:
                rows = (~_negative_zeros(total).all(1)).nonzero().flatten()
                parameter.grad = torch.sparse_coo_tensor(
                    rows[None], total[rows], total.shape, is_coalesced=True, check_invariants=False
                )

    def _of_sparse_embeddings(self) -> set[int]:
        weights = {
            id(part.weight)
            for part in self.module.modules()
            if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse
        }
        return {number for number, parameter in enumerate(self.parameters) if id(parameter) in weights}

    def _collector(self, number: int, target: torch.Tensor) -> Callable[[nn.Parameter], None]:
        """Autograd hands over memory of its own; copying once is cheaper than zeroing ``target`` and accumulating into it."""

        def collect(parameter: nn.Parameter) -> None:
            gradient = parameter.grad
            if gradient is None:
                return
            if gradient.is_sparse:  # has no data_ptr
                if number not in self.sparse:
                    raise ModelError(
                        f"parameter {self.entries[number].name} gets a sparse gradient, and belongs to no nn.Embedding or"
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


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Each trainable parameter once, by the first of its names, layer by layer."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for layer_name, layer in module.named_modules():
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
            found[name] = parameter
    return found


def _negative_zeros(values: torch.Tensor) -> torch.Tensor:
    return (values == 0) & values.signbit()
