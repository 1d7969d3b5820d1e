"""Transfer of modules and of large task functions to executors, by broadcasts, and the removal of broadcasts.

A module's bytes go to each executor once, and each Python worker unpickles it once. A Spark Connect session has no
broadcasts. There the session's files take their place.

PySpark keeps the bytes of each broadcast in a file on the driver's disk until the application ends, even when nothing
uses the broadcast any more.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import Broadcast, SparkContext, SparkFiles, cloudpickle
from pyspark.sql import SparkSession

from sparkdl_comm.job.session import is_classic
from sparkdl_comm.job.shipping import ModuleRecipe, ShippedValue, pickle_error, pickle_module
from sparkdl_comm.optim.optimizer import ModelLike
from sparkdl_comm.space.module_state import deep_copy
from sparkdl_comm.storage.session import add_file

_log = logging.getLogger(__name__)

#: Size above which Spark itself would broadcast a function, in bytes. Spark never removes such a broadcast.
_LARGE_BYTES = 1 << 20


@dataclass
class _BroadcastFile:
    """File of a broadcast on the driver's disk. ``reference``: Java's weak reference to the broadcast, which plans
    refer to.
    """

    application: str
    path: Path
    reference: Any


class ModuleBroadcasts:
    """Broadcasts of modules: one for each module, until the module changes.

    Spark removes the blocks of a broadcast when the module and all plans that use it are gone. The next call of
    :meth:`of` or :meth:`sweep` removes its file.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Newest broadcast of each module, with the application and the digest of the module's bytes, by ``id`` of the
        #: module.
        self._newest: dict[int, tuple[tuple[str, bytes], Broadcast[Any]]] = {}
        self._files: list[_BroadcastFile] = []

    def of(
        self, context: SparkContext, module: torch.nn.Module, factory: Callable[[], torch.nn.Module] | None
    ) -> Broadcast[Any]:
        """Return a broadcast of the current state of ``module``. ``factory``: see :func:`pickle_module`.

        :raises ModelError: the module cannot be pickled, and there is no factory.
        """
        pickled = pickle_module(module, factory)
        key = str(context.applicationId), hashlib.sha256(pickled).digest()
        self.sweep(context)
        with self._lock:
            known = self._newest.get(id(module))
            if known is not None and known[0] == key:
                return known[1]
            broadcast: Broadcast[Any] = context.broadcast(ShippedValue(pickled))
            reference = context._jvm.java.lang.ref.WeakReference(broadcast._jbroadcast)  # type: ignore[union-attr]
            self._files.append(_BroadcastFile(key[0], Path(broadcast._path), reference))
            if known is None:
                weakref.finalize(module, self._newest.pop, id(module), None)
            self._newest[id(module)] = key, broadcast
            return broadcast

    def sweep(self, context: SparkContext) -> None:
        """Remove the files of broadcasts that neither Python nor a plan in the JVM refers to."""
        application = str(context.applicationId)
        with self._lock:
            for file in list(self._files):
                if file.application != application or file.reference.get() is None:
                    file.path.unlink(missing_ok=True)
                    self._files.remove(file)


#: The broadcasts of this process.
MODULE_BROADCASTS = ModuleBroadcasts()


class _BroadcastFunction:
    """Stand-in for a function: unpickles to the function in the broadcast ``pickled``.

    ``module``: the module of that function, which ImportCheck imports.
    """

    def __init__(self, pickled: Broadcast[bytes], module: str) -> None:
        self._pickled = pickled
        self.__module__ = module

    def __call__(self, batches: Any) -> Any:
        raise AssertionError("call the unpickled function, not its stand-in")

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_function, (self._pickled,)


def _load_function(pickled: Broadcast[bytes]) -> Any:
    return cloudpickle.loads(pickled.value)


@contextmanager
def broadcast_if_large(spark: SparkSession, function: Callable[[Any], Any]) -> Iterator[Callable[[Any], Any]]:
    """Yield ``function`` for a job's tasks. A large function is replaced by a stand-in with a broadcast.

    The broadcast is destroyed when the context ends. Spark Connect has no broadcasts, so there ``function`` itself is
    yielded.
    """
    pickled = cloudpickle.dumps(function) if is_classic(spark) else b""
    if len(pickled) <= _LARGE_BYTES:
        yield function
        return
    MODULE_BROADCASTS.sweep(spark.sparkContext)
    broadcast = spark.sparkContext.broadcast(pickled)
    del pickled
    try:
        yield _BroadcastFunction(broadcast, function.__module__)
    finally:
        try:
            broadcast.destroy()
        except Py4JError:  # the application has ended, and its broadcasts with it
            _log.debug("cannot destroy a broadcast", exc_info=True)


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
        return cls(_send_weights(spark, tensors), deep_copy(module, empty))

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
