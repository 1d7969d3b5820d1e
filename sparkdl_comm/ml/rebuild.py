"""Blueprints: instructions for another process to make a value again without pickle.

A blueprint refers to classes and functions by import name. It is JSON, with tensors in a separate dict. It is one of::

    null  true  1  1.5  "text"                                     itself
    {"list": [blueprint, ...]}  {"tuple": [...]}  {"dict": {"name": blueprint, ...}}
    {"tensor": "0"}                                                the tensor of that name
    {"import": "torch.optim.adam:Adam"}                            a class or function
    {"partial": blueprint, "args": [...], "keywords": {...}}       a functools.partial
    {"loss": "torch.nn.modules.loss:HuberLoss", "keywords": {...}} an instance of a loss of torch.nn
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch.nn.modules import loss as losses

from sparkdl_comm.errors import PersistenceError

#: JSON; see this module's docstring.
Blueprint: TypeAlias = Any

#: Deprecated arguments of losses, replaced by ``reduction``.
_DEPRECATED = ("size_average", "reduce")


def blueprint_of(value: Any, tensors: dict[str, torch.Tensor], name: str) -> Blueprint:
    """Return a blueprint of ``value``.

    :param tensors: receives the tensors in ``value``.
    :param name: of ``value``, for the error.
    :raises PersistenceError: something in ``value`` cannot be imported by name; names it.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        key = str(len(tensors))
        tensors[key] = value.detach().cpu().contiguous()
        return {"tensor": key}
    if type(value) in (list, tuple):
        return {type(value).__name__: _items(value, tensors, name)}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": _entries(value, tensors, name)}
    if type(value) is functools.partial:
        return {
            "partial": blueprint_of(value.func, tensors, f"{name}.func"),
            "args": _items(value.args, tensors, f"{name}.args"),
            "keywords": _entries(value.keywords, tensors, f"{name}.keywords"),
        }
    imported = import_name(value)
    if imported is not None:
        return {"import": imported}
    if type(value).__module__ == losses.__name__:  # these classes keep their arguments as attributes
        arguments = [argument for argument in inspect.signature(type(value)).parameters if argument not in _DEPRECATED]
        keywords = {argument: getattr(value, argument) for argument in arguments}
        return {"loss": import_name(type(value)), "keywords": _entries(keywords, tensors, name)}
    raise PersistenceError(f"{name} ({describe_value(value)}) cannot be imported by name")


def rebuild(blueprint: Blueprint, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that :func:`blueprint_of` got.

    :raises PersistenceError: something in it cannot be imported, or is not a blueprint.
    """
    try:
        return _rebuild(blueprint, tensors)
    except (ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise PersistenceError(f"cannot rebuild {blueprint}: {error!r}") from error


def import_name(value: Any) -> str | None:
    """Return ``package.module:qualname`` of a class or function that another process can import, or None."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or module == "__main__":
        return None
    try:
        return f"{module}:{name}" if _import_by_name(f"{module}:{name}") is value else None
    except (ImportError, AttributeError):
        return None


def describe_value(value: Any) -> str:
    """Describe ``value`` for messages: ``function tests.nets:<lambda>``, ``instance of
    torch.nn.modules.linear:Linear``."""
    named = value if hasattr(value, "__qualname__") else type(value)
    kind = type(value).__name__ if named is value else "instance of"
    return f"{kind} {named.__module__}:{named.__qualname__}"


def _items(values: list[Any] | tuple[Any, ...], tensors: dict[str, torch.Tensor], name: str) -> list[Blueprint]:
    return [blueprint_of(value, tensors, f"{name}[{index}]") for index, value in enumerate(values)]


def _entries(values: dict[str, Any], tensors: dict[str, torch.Tensor], name: str) -> dict[str, Blueprint]:
    return {key: blueprint_of(value, tensors, f"{name}[{key!r}]") for key, value in values.items()}


def _rebuild(blueprint: Blueprint, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(blueprint, dict):
        return blueprint
    if "list" in blueprint:
        return [_rebuild(item, tensors) for item in blueprint["list"]]
    if "tuple" in blueprint:
        return tuple(_rebuild(item, tensors) for item in blueprint["tuple"])
    if "dict" in blueprint:
        return {key: _rebuild(item, tensors) for key, item in blueprint["dict"].items()}
    if "tensor" in blueprint:
        return tensors[blueprint["tensor"]]
    if "import" in blueprint:
        return _import_by_name(blueprint["import"])
    keywords = {key: _rebuild(item, tensors) for key, item in blueprint["keywords"].items()}
    if "loss" in blueprint:
        return _import_by_name(blueprint["loss"])(**keywords)
    args = [_rebuild(item, tensors) for item in blueprint["args"]]
    return functools.partial(_rebuild(blueprint["partial"], tensors), *args, **keywords)


def _import_by_name(name: str) -> Any:
    module, path = name.split(":", 1)
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return value
