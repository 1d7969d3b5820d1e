"""Values pickled for executors.

If an executor lacks one of the user's Python modules, the error says which. A module of torch that cannot be pickled travels
as its factory and its state.
"""

from __future__ import annotations

import pickletools
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pyspark import cloudpickle
from pyspark.cloudpickle import CloudPickler

from sparkdl_comm.errors import ModelError
from sparkdl_comm.job.trained_module import load_trained
from sparkdl_comm.space import module_state


@dataclass(frozen=True)
class ShippedValue:
    """Value that unpickles to itself on executors.

    ``pickled``: the value, pickled by cloudpickle, which also handles a class from a notebook. If an executor lacks a
    module that the value needs, it raises the ModelError of :func:`missing_module_error`.
    """

    pickled: bytes = field(repr=False)

    @classmethod
    def of(cls, value: Any) -> ShippedValue:
        return cls(cloudpickle.dumps(value))

    def __reduce__(self) -> tuple[Any, ...]:
        texts = {text for _, text, _ in pickletools.genops(self.pickled) if isinstance(text, str)}
        files = _module_files({name.partition(".")[0] for name in texts if name in sys.modules})
        return _load, (self.pickled, files)


def _load(pickled: bytes, files: Mapping[str, str]) -> Any:
    try:
        return cloudpickle.loads(pickled)
    except ModuleNotFoundError as error:
        raise missing_module_error(str(error), files) from None


def missing_module_error(message: str, files: Mapping[str, str] | None = None) -> ModelError:
    """Return the error for a Python module of the user that executors lack. It says how to provide the module.

    :param message: of the ModuleNotFoundError on the executor.
    :param files: paths of top-level modules on the driver. None: this process is the driver.
    """
    match = re.search(r"No module named '([^']*)'", message)
    name = match[1] if match else ""
    top = name.partition(".")[0]
    file = Path((_module_files({top}) if files is None else files).get(top) or f"{top}.py")
    source = f"a zip of {file.parent}" if file.name == "__init__.py" else str(file)
    return ModelError(
        f"executors have no module {name!r}, which the model, function or another argument needs. Give them {source}, by"
        " spark.sparkContext.addPyFile(path) beforehand, spark-submit --py-files, or on Spark Connect"
        " spark.addArtifacts(path, pyfile=True). Install a library on executors instead"
    )


def _module_files(names: Iterable[str]) -> dict[str, str]:
    """Return the files of the loaded top-level modules ``names``. Modules without a file are left out."""
    found = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return {name: file for name, file in found.items() if file}


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
