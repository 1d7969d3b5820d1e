"""A module whose trainable parameters, and their gradients, are views of two flat vectors: nothing is copied to send them.

A parameter that a step does not use has no gradient, and the optimizer must not touch it: no decay, no momentum. Ranks need
not tell each other which ones they used: an unused one has the gradient -0.0, a used one never, and a sum is -0.0 only where
all terms are. So whoever adds gradients up must begin with those of a rank, not with 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from sparkdl_comm.errors import ModelError
from sparkdl_comm.space.aliases import check_apart
from sparkdl_comm.space.parameter_space import ParameterSpace

_ZERO = torch.zeros(())


class FlatModel(ParameterSpace):
    """``module`` and the space of its trainable parameters, in the order of its layers: the leaves that own some.

    A parameter that several layers share lies with the first of them. Frozen parameters and buffers are left where they
    are.

    A trainable parameter may be frozen later, and then trained again (``requires_grad``): without a gradient the optimizer
    leaves it as it is. See :meth:`check_trainable` for one that is frozen now.

    :raises ModelError: nothing is trainable, or a trainable parameter is not float32, has no shape yet, or shares memory with
        another tensor.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        found = _trainable(module)
        super().__init__({name: parameter.shape for name, parameter in found.items()})
        if not self.layers:
            raise ModelError(f"{type(module).__name__} has no trainable parameters (requires_grad) with elements")
        #: The trainable ones that have elements, one for each of :attr:`entries`.
        self.parameters = [found[entry.name] for entry in self.entries]
        check_apart(module, found)
        self._known = {id(parameter) for parameter in found.values()}
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
        """SHA-256 over names and shapes: equal on all ranks that train the same parameters."""
        return hashlib.sha256("".join(f"{entry.name} {entry.shape}\n" for entry in self.entries).encode()).hexdigest()

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
            self._collectors.append(on_accumulated(parameter, self._collector(number, gradient)))

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

    def versions(self) -> list[tuple[int, int]]:
        """Changes whenever autograd sees a parameter written in place, or its ``data`` is replaced."""
        return [(parameter._version, parameter.data_ptr()) for parameter in self.parameters]

    def replaced(self) -> list[str]:
        """Names of the parameters whose ``data`` was replaced since :meth:`bind` or :meth:`move`."""
        begin, size = self.values.data_ptr(), self.values.element_size()
        pairs = zip(self.entries, self.parameters, strict=True)
        return [entry.name for entry, parameter in pairs if parameter.data_ptr() != begin + entry.start * size]

    def take_back(self, name: str) -> bool:
        """Move a parameter whose ``data`` was replaced into :attr:`values` again, with its values. False if it has another
        shape or type now."""
        number = next(number for number, entry in enumerate(self.entries) if entry.name == name)
        parameter, view = self.parameters[number], self.entries[number].view(self.values)
        if parameter.shape != view.shape or parameter.dtype != view.dtype:
            return False
        with torch.no_grad():
            view.copy_(parameter)
        parameter.data = view
        return True

    def check_trainable(self) -> None:
        """Check that all parameters that require a gradient are trained.

        :raises ModelError: one does not, since it was frozen or was not there when training began.
        """
        ahead: list[nn.Module] = [self.module]
        while ahead:  # each step looks; named_parameters would take four times as long
            part = ahead.pop()
            for parameter in part._parameters.values():
                if parameter is not None and parameter.requires_grad and id(parameter) not in self._known:
                    self._check_empty(parameter)
            ahead.extend(child for child in part._modules.values() if child is not None)

    def _check_empty(self, untrained: nn.Parameter) -> None:
        if not untrained.numel():
            return
        name = next(name for name, parameter in self.module.named_parameters() if parameter is untrained)
        raise ModelError(
            f"parameter {name} requires a gradient now, and was frozen (requires_grad=False) or not there when"
            " training began: no optimizer has it, so it would not be trained. Let it require a gradient when the"
            " model is made, and freeze it in a callback's on_train_begin: what is frozen then may be unfrozen later"
        )

    def frozen(self) -> list[str]:
        """Names of the trained parameters that are frozen now."""
        pairs = zip(self.entries, self.parameters, strict=True)
        return [entry.name for entry, parameter in pairs if not parameter.requires_grad]

    def freeze(self, names: Collection[str]) -> None:
        """Freeze these of the trained parameters, and no others."""
        for entry, parameter in zip(self.entries, self.parameters, strict=True):
            parameter.requires_grad_(entry.name not in names)

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


def on_accumulated(parameter: nn.Parameter, hook: Callable[[nn.Parameter], None]) -> RemovableHandle:
    """Have ``hook`` called when backward has made the parameter's gradient, also where the parameter is frozen just now."""
    trains = parameter.requires_grad
    handle: RemovableHandle = parameter.requires_grad_(True).register_post_accumulate_grad_hook(hook)
    parameter.requires_grad_(trains)
    return handle


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
