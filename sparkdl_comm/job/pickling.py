"""Pickling of modules for executors: whole, or as factory and state if pickle cannot handle the module."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch
from pyspark import cloudpickle
from pyspark.cloudpickle import CloudPickler

from sparkdl_comm.errors import ModelError
from sparkdl_comm.job.trained_module import load_trained
from sparkdl_comm.space import module_state


class _NullFile:
    """File that discards its input."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes  # a large array is a PickleBuffer, which has no length


class _DryPickler(CloudPickler):  # type: ignore[misc]
    """Pickler that works like Spark's, but leaves tensors out."""

    def reducer_override(self, obj: Any) -> Any:
        return (int, ()) if isinstance(obj, torch.Tensor) else super().reducer_override(obj)


def pickle_error(part: Any) -> Exception | None:
    """Return the exception that pickling ``part`` for executors raises. None if it can be pickled.

    Leaves tensors out, so it uses no memory. torch can pickle all tensors.
    """
    try:
        _DryPickler(_NullFile()).dump(part)
    except Exception as error:  # noqa: BLE001 - a user's __reduce__ may raise anything
        return error
    return None


class ModuleRecipe:
    """Factory and state of a module that cannot be pickled, such as TorchScript or one with parametrizations.

    ``factory``: makes such modules on executors. ``tensors``: the module's state, from ``module_state.pack_state``.
    ``frozen``: names of the parameters that require no gradient.
    """

    def __init__(
        self,
        factory: Callable[[], torch.nn.Module],
        tensors: dict[str, torch.Tensor],
        frozen: Collection[str] = (),
    ) -> None:
        self.factory = factory
        self.tensors = tensors
        self.frozen = frozen

    @classmethod
    def of(
        cls, module: torch.nn.Module, factory: Callable[[], torch.nn.Module] | None, error: Exception
    ) -> ModuleRecipe:
        """Return the factory and the state of ``module``.

        :param error: the exception that pickling the module raised.
        :raises ModelError: there is no factory.
        """
        if factory is None:
            raise ModelError(
                f"the model ({type(module).__name__}) cannot be shipped to executors: {type(error).__name__}: {error}."
                " Train it from a function that makes it: TorchEstimator(model=function)"
            ) from error
        tensors = module_state.pack_state(module, lambda text: warnings.warn(text, stacklevel=2))
        frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
        return cls(factory, {name: tensor.detach() for name, tensor in tensors.items()}, frozen)

    def __call__(self) -> torch.nn.Module:
        """Return the module. It takes over the memory of ``tensors``."""
        module = load_trained(self.factory(), self.tensors)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name not in self.frozen)
        return module


class _ModuleFromRecipe:
    """Object that unpickles to the module that ``recipe`` makes."""

    def __init__(self, recipe: ModuleRecipe) -> None:
        self.recipe = recipe

    def __reduce__(self) -> tuple[Any, ...]:
        return ModuleRecipe.__call__, (self.recipe,)


def pickle_module(module: torch.nn.Module, factory: Callable[[], torch.nn.Module] | None) -> bytes:
    """Return bytes that cloudpickle loads as the module.

    :raises ModelError: the module cannot be pickled, and there is no ``factory``.
    """
    error = pickle_error(module)
    part = module if error is None else _ModuleFromRecipe(ModuleRecipe.of(module, factory, error))
    pickled: bytes = cloudpickle.dumps(part)
    return pickled
