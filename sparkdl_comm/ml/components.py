"""Checks of the model, loss and optimizer that a user gives, before they are shipped."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from sparkdl_comm.data.fields import Field
from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.job.shipping import ModuleRecipe, pickle_error
from sparkdl_comm.ml.model import TorchModel
from sparkdl_comm.ml.scoring import activation_of
from sparkdl_comm.optim.optimizer import ModelLike, OptimizerFactory, check_steps
from sparkdl_comm.space import module_state
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.train.diagnosis import ClassLabels, compares_values
from sparkdl_comm.train.objective import LOSS_PARAMETERS_ADVICE
from sparkdl_comm.train.spec import Loss

_CLASS_LOSSES = (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss, torch.nn.MultiMarginLoss)
_CLASS_FUNCTIONS = (F.cross_entropy, F.nll_loss, F.multi_margin_loss)


def check_model(model: object) -> ModelLike:
    """Return ``model`` if it is a module or makes one when called. For a TorchModel, return its module, to train it
    further.

    :raises ModelError: it is something else, or cannot be trained.
    """
    factory: Callable[[], torch.nn.Module] | None = None
    if isinstance(model, TorchModel):
        factory, model = model.factory, model.module
    if isinstance(model, torch.nn.Module):
        FlatModel(model)  # checks its parameters
        _check_hooks(model)
        module_state.check(model)
        refused = None if factory is None else pickle_error(model)
        return model if refused is None else ModuleRecipe.of(model, factory, refused)
    if callable(model):
        _check_signature(model)
        return model
    raise ModelError(
        f"model is {describe(model)}; give a torch.nn.Module, its class, or a function that returns one, "
        "e.g. TorchEstimator(model=LeNet5, ...)"
    )


def _check_hooks(module: torch.nn.Module) -> None:
    """Check that no parameter has a hook for its gradient, which torch silently drops when it pickles or copies a
    module.

    :raises ModelError: a parameter has one.
    """
    hooked = [name for name, p in module.named_parameters() if p._backward_hooks or p._post_accumulate_grad_hooks]
    if hooked:
        raise ModelError(
            f"model: parameter {hooked[0]} has a hook for its gradient (register_hook), and so have {len(hooked) - 1} others."
            " Hooks do not reach the executors. Give a function that makes the module and its hooks"
        )


def _check_signature(factory: Any) -> None:
    """Check that the factory can be called without arguments.

    :raises ModelError: it cannot.
    """
    try:
        signature = inspect.signature(factory)
    except ValueError:  # it is not written in Python
        return
    try:
        signature.bind()
    except TypeError as error:
        raise ModelError(
            f"model ({describe(factory)}) is called without arguments: {error}. Give functools.partial(model, ...)"
        ) from error


def make_loss(loss: object) -> Loss:
    """Return the loss as a callable ``(output, target)``.

    :param loss: a callable; or a loss of torch.nn: an instance, a class or a name.
    :raises ModelError: ``loss`` is something else, its name is unknown (suggests the nearest), it has trainable
        parameters, one of its tensors has no shape yet, or two of them share memory.
    """
    if isinstance(loss, str):
        names = [name for name in vars(torch.nn) if name.endswith("Loss")]
        if loss not in names:
            nearest = difflib.get_close_matches(loss, names, n=1, cutoff=0.0)[0]
            raise ModelError(f"loss={loss!r}: torch.nn has no loss of this name; did you mean {nearest}?")
        loss = getattr(torch.nn, loss)
    if isinstance(loss, type) and issubclass(loss, torch.nn.Module):
        try:
            loss = loss()
        except TypeError as error:
            raise ModelError(f"loss: {loss.__name__} cannot be made without arguments; give an instance") from error
    if not callable(loss):
        raise ModelError(
            f"loss is {describe(loss)}; give a callable (output, target) -> scalar tensor, or a loss of "
            'torch.nn, e.g. loss="CrossEntropyLoss"'
        )
    reduction = getattr(loss, "keywords", {}).get("reduction", getattr(loss, "reduction", "mean"))
    # a function may have 'none', for weightCol
    if reduction == "sum" or (reduction != "mean" and isinstance(loss, torch.nn.Module)):
        raise ModelError(f"loss: {type(loss).__name__} has reduction={reduction!r}; it must be 'mean' over the rows")
    called: Any = loss
    while isinstance(called, functools.partial):  # its arguments may have a teacher that needs no gradients
        called = called.func
    for module in module_state.modules_of(called):
        module_state.check_shapes(module, "loss: ")
        module_state.check_no_aliases(module, {}, "loss: ")
        trainable = [name for name, p in module.named_parameters() if p.requires_grad]
        if trainable:
            raise ModelError(
                f"loss: {type(module).__name__} has parameters to train, {', '.join(trainable)}, and only the model's are"
                f" trained. {LOSS_PARAMETERS_ADVICE}"
            )
    return loss


def make_optimizer_factory(optimizer: object, learning_rate: float | None = None) -> OptimizerFactory:
    """Return the optimizer as a callable that takes parameters. None: SGD with learning rate 0.01.

    :param learning_rate: replaces the optimizer's learning rate; None: keeps it.
    :raises ConfError: the optimizer takes no learning rate.
    :raises ModelError: ``optimizer`` is not callable, already has its parameters, gets arguments that its torch.optim
        class does not accept, or needs a closure (LBFGS).
    """
    if optimizer is None:
        optimizer = functools.partial(torch.optim.SGD, lr=0.01)
    if isinstance(optimizer, torch.optim.Optimizer) or not callable(optimizer):
        raise ModelError(
            f"optimizer is {describe(optimizer)}; give a callable that makes one from parameters: a class of "
            "torch.optim or, with arguments, functools.partial(torch.optim.Adam, lr=1e-3)"
        )
    if learning_rate is not None:
        if not _accepts_keyword(optimizer, "lr"):
            raise ConfError(
                f"learningRate={learning_rate}: the optimizer ({describe(optimizer)}) takes no lr; give a class of"
                " torch.optim, a functools.partial of one, or a function (params, lr), or leave learningRate out"
            )
        optimizer = functools.partial(optimizer, lr=learning_rate)
    kind = getattr(optimizer, "func", optimizer)  # of a functools.partial
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
        try:
            instance = optimizer([torch.nn.Parameter(torch.zeros(1, 1))])  # a matrix: Muon takes no other
        except (TypeError, ValueError) as error:
            raise ModelError(f"optimizer: {kind.__name__} does not take these arguments: {error}") from error
        check_steps(instance)
    return optimizer


def _accepts_keyword(factory: Any, keyword: str) -> bool:
    parameters = inspect.signature(factory).parameters.values()
    return any(parameter.name == keyword or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def target_type(loss: Loss, integral: bool, scalar: bool) -> str:
    """Return the type of the tensor of a label column: ``int64`` for classes, else ``float32``.

    Losses of torch.nn or torch.nn.functional decide themselves. They take arrays of non-integers as probabilities of
    classes. For other losses, integers are classes.

    :param integral: the column holds integers.
    :param scalar: the column holds one label per row, not an array.
    """
    if compares_values(loss):
        return "float32"
    return "int64" if integral or (scalar and _is_class_loss(loss)) else "float32"


def class_labels(loss: Loss, targets: Sequence[Field]) -> ClassLabels | None:
    """Return the description of the labels of a loss over classes in torch.nn or torch.nn.functional. None: another
    loss."""
    function = getattr(loss, "func", loss)  # of a functools.partial
    if not _is_class_loss(loss) or [field.dtype for field in targets] != ["int64"]:
        return None
    ignored = getattr(loss, "keywords", {}).get("ignore_index", getattr(loss, "ignore_index", None))
    if ignored is None and function in (F.cross_entropy, F.nll_loss):
        ignored = inspect.signature(function).parameters["ignore_index"].default
    return ClassLabels(targets[0], ignored)


def label_limits(loss: Loss) -> tuple[float, float] | None:
    """Return the smallest and largest label of a loss over probabilities. None: another loss."""
    return (0.0, 1.0) if activation_of(loss) in ("sigmoid", "identity") else None


def _is_class_loss(loss: Loss) -> bool:
    return isinstance(loss, _CLASS_LOSSES) or getattr(loss, "func", loss) in _CLASS_FUNCTIONS


def make_row_loss(loss: Loss) -> Loss:
    """Return a loss that gives one value per row, ``[rows]``.

    For a loss of torch.nn or torch.nn.functional, it is the same loss without the mean. Any other loss is returned
    unchanged.
    """
    partial: Any = loss if isinstance(loss, functools.partial) else functools.partial(loss)
    if (
        getattr(partial.func, "__module__", None) == F.__name__
        and "reduction" in inspect.signature(partial.func).parameters
    ):
        return functools.partial(partial.func, *partial.args, **{**partial.keywords, "reduction": "none"})
    if not isinstance(loss, torch.nn.Module) or not hasattr(loss, "reduction"):
        return loss
    module: Any = copy.copy(loss)
    module.reduction = "none"
    row_loss: Loss = module
    return row_loss


def check_picklable(**parts: Any) -> None:
    """Check that the parts can be pickled for the executors.

    Tensors are left out, so the check needs no memory. torch can pickle all tensors.

    :raises ModelError: a part cannot be pickled. The message names the part and the attribute at fault.
    """
    for name, part in parts.items():
        error = pickle_error(part)
        if error is not None:
            where, cause = _find_unpicklable(name, part, error)
            raise ModelError(
                f"{where} cannot be shipped to executors: {type(cause).__name__}: {cause}. Create it where it "
                "is used, or give a function that makes the model instead of the model"
            ) from cause


def _find_unpicklable(name: str, part: Any, error: Exception, depth: int = 8) -> tuple[str, Exception]:
    """Return the innermost object that cannot be pickled, e.g. ``model.encoder.lock (of type _thread.lock)``, and its
    error."""
    for key, value in _pickled_objects(part).items() if depth else ():
        inner = pickle_error(value)
        if inner is not None:
            return _find_unpicklable(f"{name}.{key}", value, inner, depth - 1)
    return f"{name} ({describe(part)})", error


def _pickled_objects(part: Any) -> dict[str, Any]:
    """Return the objects pickled with ``part``: attributes, submodules, bound arguments, variables that a function
    uses."""
    contents = dict(getattr(part, "__dict__", {}))
    if isinstance(part, torch.nn.Module):
        contents.update(contents.pop("_modules", {}))
    elif isinstance(part, functools.partial):
        contents.update(part.keywords)
    elif inspect.isfunction(part):
        variables = inspect.getclosurevars(part)
        contents.update({**variables.globals, **variables.nonlocals})
    return contents


def describe(value: Any) -> str:
    """Return a description of the value that a user gave, for messages."""
    if value is None:
        return "not given"
    kind = value if isinstance(value, type) else type(value)
    return f"{'the class' if isinstance(value, type) else 'of type'} {kind.__module__}.{kind.__qualname__}"
