"""Transfer of a module to executors: its bytes go to each executor once, and each Python worker unpickles it once.

A Spark Connect session has no broadcasts. There the session's files take their place.
"""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from pyspark import Broadcast, SparkFiles
from pyspark.sql import SparkSession

from sparkdl_comm.job.broadcasts import MODULE_BROADCASTS
from sparkdl_comm.job.pickling import ModuleRecipe, pickle_error
from sparkdl_comm.job.session import is_classic
from sparkdl_comm.optim.optimizer import ModelLike
from sparkdl_comm.storage.session import add_file


@dataclass(frozen=True)
class SessionModule:
    """Module for the tasks of a Spark Connect session, which has no broadcasts, and limits its messages to 128 MiB.

    ``weights``: name of the session's file with the parameters and dense buffers, in safetensors format. ``empty``: the
    module with tensors of the same shapes that take no memory, or a ModuleRecipe without tensors. Spark ships it with
    the function that uses it.
    """

    weights: str
    empty: torch.nn.Module | ModuleRecipe = field(compare=False, repr=False)

    @classmethod
    def of(cls, spark: SparkSession, module: torch.nn.Module) -> SessionModule:
        """Return ``module`` for the tasks of ``spark``, and add its weights to the session's files."""
        tensors = _dense_tensors(module)
        empty = {id(tensor): _make_empty(tensor) for tensor in tensors.values()}
        return cls(_send_weights(spark, tensors), copy.deepcopy(module, empty))

    def __call__(self) -> torch.nn.Module:
        """Return the module. Call this once, because it fills ``empty``."""
        weights = safetensors.torch.load_file(SparkFiles.get(self.weights))
        if isinstance(self.empty, ModuleRecipe):
            return ModuleRecipe(self.empty.factory, weights, self.empty.frozen)()
        for name, tensor in _dense_tensors(self.empty).items():
            tensor.data = weights[name]
        return self.empty

    @property
    def value(self) -> torch.nn.Module:
        """The module, the same for all tasks of a Python worker."""
        return _make_once(self)


@functools.lru_cache(maxsize=1)
def _make_once(module: SessionModule) -> torch.nn.Module:
    return module()


def _send_weights(spark: SparkSession, tensors: dict[str, torch.Tensor]) -> str:
    """Add ``tensors`` to the session's files, in safetensors format, and return the file's name."""
    with tempfile.TemporaryDirectory(prefix="sparkdl-ship-") as folder:
        file = Path(folder, "weights")
        safetensors.torch.save_file({name: _copy(tensor) for name, tensor in tensors.items()}, file)
        return add_file(spark, file)


def _dense_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the dense parameters and buffers by name, as safetensors requires. A shared tensor appears once."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor for name, tensor in tensors.items() if tensor.layout == torch.strided}


def _make_empty(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the shape and dtype of ``tensor`` that takes no memory."""
    shape = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
    return torch.nn.Parameter(shape, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else shape


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy on the CPU, because safetensors refuses tensors that share memory."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def model_for_tasks(spark: SparkSession, model: ModelLike) -> ModelLike:
    """Return the form of ``model`` from which training tasks make theirs.

    This is ``model`` itself, or on Spark Connect, for a module, its SessionModule.
    """
    return model if is_classic(spark) or not isinstance(model, torch.nn.Module) else SessionModule.of(spark, model)


def broadcast_module(
    spark: SparkSession, module: torch.nn.Module, factory: Callable[[], torch.nn.Module] | None
) -> Broadcast[Any] | SessionModule:
    """Send the module to tasks that score. They read it from the result's ``value``.

    :param factory: makes such modules. If the module cannot be pickled, the factory and the module's state are sent.
    :raises ModelError: the module cannot be pickled, and there is no factory.
    """
    if is_classic(spark):
        return MODULE_BROADCASTS.of(spark.sparkContext, module, factory)
    error = pickle_error(module)
    if error is None:
        return SessionModule.of(spark, module)
    recipe = ModuleRecipe.of(module, factory, error)
    return SessionModule(_send_weights(spark, recipe.tensors), ModuleRecipe(recipe.factory, {}, recipe.frozen))
