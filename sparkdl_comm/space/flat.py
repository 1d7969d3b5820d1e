"""Flat model: a module whose trainable parameters and gradients are views of two flat vectors, so sending copies
nothing.

A parameter that a step does not use has no gradient, and the optimizer must not touch it: no decay, no momentum. Ranks
need not exchange which parameters they used. An unused parameter has the gradient -0.0, a used one never has, and a sum
is -0.0 only if all its terms are. So code that sums gradients must start from a rank's gradient, not from 0.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterator

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from sparkdl_comm.errors import ModelError
from sparkdl_comm.space.module_state import check_no_aliases, check_shapes
from sparkdl_comm.space.parameter_space import ParameterSpace

_ZERO = torch.zeros(())


def sparse_embeddings(module: nn.Module) -> set[int]:
    """Return the ids of the weights of Embedding and EmbeddingBag layers with sparse gradients."""
    embeddings = (layer for layer in module.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)))
    return {id(layer.weight) for layer in embeddings if layer.sparse}


class FlatModel(ParameterSpace):
    """``module``, and the space of its trainable parameters in the order of its layers. A layer is a leaf module that
    owns some.

    A parameter that several layers share belongs to the first of them. Frozen parameters and buffers stay where they
    are. A trainable parameter may be frozen later, and then trained again (``requires_grad``): without a gradient the
    optimizer leaves it unchanged. See :meth:`check_trainable` for a parameter that is frozen now.

    :raises ModelError: nothing is trainable, a trainable parameter is not float32, a parameter or buffer has no shape
        yet, or two tensors share memory.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        check_shapes(module)
        found = _trainable(module)
        super().__init__({name: parameter.shape for name, parameter in found.items()})
        if not self.layers:
            raise ModelError(f"{type(module).__name__} has no trainable parameters (requires_grad) with elements")
        #: Trainable parameters that have elements, one for each of :attr:`entries`.
        self.parameters = [found[entry.name] for entry in self.entries]
        self.check_aliases()
        #: Attributes that hold each trained parameter, by its id.
        self._attributes = _attributes(module, {id(parameter) for parameter in found.values()})
        self.values = torch.empty(0)
        self.gradients = torch.empty(0)
        #: Functions of :meth:`listen`, in the order in which they are called.
        self._listeners: list[Callable[[int], None]] = []
        #: Numbers of the parameters with sparse gradients: rows that a step does not use stay unchanged.
        embeddings = sparse_embeddings(module)
        self.sparse = {number for number, parameter in enumerate(self.parameters) if id(parameter) in embeddings}
        #: Numbers of the parameters for which this rank's last step made no gradient.
        self._missing: set[int] = set()
        self._collectors: list[RemovableHandle] = []
        self._views: dict[int, list[torch.Tensor]] = {}

    def fingerprint(self) -> str:
        """Return the SHA-256 over names and shapes. It is equal on all ranks that train the same parameters."""
        return hashlib.sha256("".join(f"{entry.name} {entry.shape}\n" for entry in self.entries).encode()).hexdigest()

    def load(self, start: int, values: torch.Tensor) -> None:
        """Set elements of the parameters from ``values``, which start at element ``start`` of the flat vector. Call it
        before :meth:`bind`.
        """
        for piece in self.cut(start, len(values)):
            parameter, first = self.parameters[piece.number], self.entries[piece.number].start
            parameter.data = parameter.detach().contiguous()
            given = values[piece.start - start : piece.start - start + piece.count]
            parameter.data.view(-1)[piece.start - first : piece.start - first + piece.count] = given

    @property
    def device(self) -> torch.device:
        """Device of the module."""
        return next(self.module.parameters()).device

    def bind(self, values: torch.Tensor | None = None, gradients: torch.Tensor | None = None) -> None:
        """Move the parameters into ``values``, and make backward write their gradients into ``gradients``.

        Both are float32 with ``count`` elements, on the module's device. None: new memory.
        """
        self.values = torch.empty(self.count, device=self.device) if values is None else values
        self.gradients = torch.zeros(self.count, device=self.device) if gradients is None else gradients
        views = zip(self.parameters, self.views(self.values), self.views(self.gradients), strict=True)
        for number, (parameter, view, gradient) in enumerate(views):
            with torch.no_grad():
                view.copy_(parameter)
            parameter.data = view
            # torch refuses a hook for a parameter that is frozen just now.
            requires_grad = parameter.requires_grad
            parameter.requires_grad_(True)
            collector = self._collector(number, gradient)
            self._collectors.append(parameter.register_post_accumulate_grad_hook(collector))  # type: ignore[no-untyped-call]
            parameter.requires_grad_(requires_grad)

    @contextlib.contextmanager
    def listen(self, on_gradient: Callable[[int], None]) -> Iterator[None]:
        """Return a context for a backward pass. In it, call ``on_gradient`` whenever a gradient is in :attr:`gradients`.

        The argument of ``on_gradient`` is the parameter's index in :attr:`parameters`. With re-entrant checkpointing it may
        be called several times for one parameter, each time with a larger sum. :meth:`bind` must have been called before.
        """
        self._listeners.append(on_gradient)
        try:
            yield
        finally:
            self._listeners.remove(on_gradient)

    def move(self, values: torch.Tensor) -> None:
        """Use ``values`` as the parameters from now on: a vector of the same form and device. Call it after
        :meth:`bind`.

        It must not be called between a forward pass and its backward pass.
        """
        views = self._views.setdefault(values.data_ptr(), [])
        if not views:
            views.extend(self.views(values))
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view
        self.values = values

    def release(self) -> None:
        """Give the parameters separate memory again, so that the flat vectors can be freed."""
        # Python cannot collect the cycle of parameter, collector and model: it passes through torch's code.
        for collector in self._collectors:
            collector.remove()
        self._collectors.clear()
        for parameter in self.parameters:
            parameter.data = parameter.detach().clone()
            parameter.grad = None
        self._views.clear()
        self.values = self.gradients = torch.empty(0)

    def versions(self) -> list[tuple[int, int]]:
        """Return values that change whenever autograd sees a parameter written in place, or its ``data`` is replaced."""
        return [(parameter._version, parameter.data_ptr()) for parameter in self.parameters]

    def replaced(self) -> list[str]:
        """Return the names of the parameters whose ``data`` was replaced since :meth:`bind` or :meth:`move`."""
        begin, size = self.values.data_ptr(), self.values.element_size()
        pairs = zip(self.entries, self.parameters, strict=True)
        return [entry.name for entry, parameter in pairs if parameter.data_ptr() != begin + entry.start * size]

    def take_back(self, name: str) -> bool:
        """Move a parameter whose ``data`` was replaced into :attr:`values` again, keeping its new values.

        Return False if its shape or type has changed.
        """
        number = next(number for number, entry in enumerate(self.entries) if entry.name == name)
        parameter, view = self.parameters[number], self.entries[number].view(self.values)
        if parameter.shape != view.shape or parameter.dtype != view.dtype:
            return False
        with torch.no_grad():
            view.copy_(parameter)
        parameter.data = view
        return True

    def check_aliases(self) -> None:
        """Check that no two tensors of the module share memory; see :func:`check_no_aliases`.

        :raises ModelError: two of them do.
        """
        trained = {entry.name: parameter for entry, parameter in zip(self.entries, self.parameters, strict=True)}
        check_no_aliases(self.module, trained)

    def check_trainable(self) -> None:
        """Check that the module still has the trained parameters under their names, and that no other parameter requires
        a gradient.

        :raises ModelError: a parameter was frozen or missing when training began; or the module no longer has it, for
            example because it became a buffer; or an attribute with a new name has it, as after
            ``torch.nn.utils.prune``.
        """
        pending: list[nn.Module] = [self.module]
        missing = set(self._attributes)
        while pending:  # this runs in each step; named_parameters would take four times as long
            part = pending.pop()
            for attribute, parameter in part._parameters.items():
                if attributes := self._attributes.get(id(parameter)):
                    if attribute not in attributes:
                        self._refuse_name(parameter, attribute)
                    missing.discard(id(parameter))
                elif parameter is not None and parameter.requires_grad:
                    self._check_empty(parameter)
            pending.extend(child for child in part._modules.values() if child is not None)
        if missing:
            self._refuse_missing(missing)

    def _check_empty(self, untrained: nn.Parameter) -> None:
        if not untrained.numel():
            return
        name = next(name for name, parameter in self.module.named_parameters() if parameter is untrained)
        raise ModelError(
            f"parameter {name} requires a gradient now, but was frozen (requires_grad=False) or missing when"
            " training began. The optimizer does not have it, so it would not be trained. Let it require a gradient when"
            " the model is made, and freeze it in a callback's on_train_begin. It may then be unfrozen later."
        )

    def _refuse_missing(self, ids: Collection[int]) -> None:
        for entry, parameter in zip(self.entries, self.parameters, strict=True):
            if id(parameter) not in ids:
                continue
            raise ModelError(
                f"{entry.name} is no longer a parameter of the model, but the optimizer still trains it. The trained"
                " model would lack it. Leave it a parameter, and freeze it (requires_grad_(False))."
            )

    def _refuse_name(self, renamed: nn.Parameter | None, attribute: str) -> None:
        pairs = zip(self.entries, self.parameters, strict=True)
        if name := next((entry.name for entry, parameter in pairs if parameter is renamed), None):
            raise ModelError(
                f"parameter {name} has the new name {attribute} now, which the driver's model lacks. It gets the trained"
                " parameters by name. Prune or parametrize the model when it is made, not during training, and keep a"
                " second name of a parameter out of the module's attributes."
            )

    def frozen(self) -> list[str]:
        """Return the names of the trained parameters that are frozen now."""
        pairs = zip(self.entries, self.parameters, strict=True)
        return [entry.name for entry, parameter in pairs if not parameter.requires_grad]

    def freeze(self, names: Collection[str]) -> None:
        """Freeze these trained parameters, and unfreeze all others."""
        for entry, parameter in zip(self.entries, self.parameters, strict=True):
            parameter.requires_grad_(entry.name not in names)

    def clear_gradients(self) -> None:
        """Clear the gradients. Call it before the backward pass of a step."""
        for parameter in self.parameters:
            parameter.grad = None
        self._missing.clear()

    def complete_gradients(self) -> None:
        """Mark the parameters that this rank did not use with gradient -0.0. Call it after the backward pass."""
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                parameter.grad = self.entries[number].view(self.gradients).fill_(-0.0)
                self._missing.add(number)

    def is_unused(self, number: int, total: torch.Tensor) -> bool:
        """Return whether no rank used a parameter in this step. ``total``: its gradient's elements, summed over the
        ranks.
        """
        return number in self._missing and bool(_negative_zeros(total).all())

    def settle_gradients(self, sparse: bool) -> None:
        """Set the gradients that the optimizer would get in one process. :attr:`gradients` is the sum over the ranks.

        Parameters that no rank used get no gradient.

        :param sparse: parameters of :attr:`sparse` get a sparse gradient, of the rows that some rank used.
        """
        for number, (parameter, total) in enumerate(zip(self.parameters, self.views(self.gradients), strict=True)):
            if self.is_unused(number, total):
                parameter.grad = None
            elif sparse and number in self.sparse:
                rows = (~_negative_zeros(total).all(1)).nonzero().flatten()
                parameter.grad = torch.sparse_coo_tensor(
                    rows[None], total[rows], total.shape, is_coalesced=True, check_invariants=False
                )

    def _collector(self, number: int, target: torch.Tensor) -> Callable[[nn.Parameter], None]:
        """Return the hook that copies a gradient into ``target``.

        Autograd allocates new memory for a gradient. Copying it once is cheaper than zeroing ``target`` and
        accumulating into it.
        """

        def collect(parameter: nn.Parameter) -> None:
            gradient = parameter.grad
            if gradient is None:
                return
            if gradient.is_sparse:  # has no data_ptr
                if number not in self.sparse:
                    raise ModelError(
                        f"parameter {self.entries[number].name} gets a sparse gradient, but belongs to no nn.Embedding or"
                        " nn.EmbeddingBag with sparse=True. Compute it without sparse=True."
                    )
                gradient = gradient.coalesce()
                target.fill_(-0.0)
                target[gradient.indices()[0]] = gradient.values() + _ZERO
                parameter.grad = target
            elif gradient.data_ptr() != target.data_ptr():
                torch.add(gradient, _ZERO, out=target)  # -0.0 becomes 0.0
                parameter.grad = target
            for on_gradient in self._listeners:
                on_gradient(number)

        return collect


def _attributes(module: nn.Module, ids: Collection[int]) -> dict[int, set[str]]:
    """Return the names of the attributes that hold these parameters, for each parameter's id."""
    found: dict[int, set[str]] = {number: set() for number in ids}
    for part in module.modules():
        for attribute, parameter in part._parameters.items():
            if id(parameter) in found:
                found[id(parameter)].add(attribute)
    return found


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return each trainable parameter once, under the first of its names, layer by layer."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for layer_name, layer in module.named_modules():
        for name, parameter in layer.named_parameters(prefix=layer_name, recurse=False):
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            if parameter.dtype != torch.float32:
                raise ModelError(
                    f"parameter {name} is {parameter.dtype}. Trained parameters must be torch.float32."
                    " Call model.float(), or freeze it."
                )
            seen.add(id(parameter))
            found[name] = parameter
    return found


def _negative_zeros(values: torch.Tensor) -> torch.Tensor:
    return (values == 0) & values.signbit()
