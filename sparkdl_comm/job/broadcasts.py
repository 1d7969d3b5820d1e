"""Broadcasts of scored modules and of large task functions, and their removal.

PySpark keeps the bytes of each broadcast in a file on the driver's disk until the application ends, even when nothing
uses the broadcast any more.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import Broadcast, SparkContext, cloudpickle
from pyspark.sql import SparkSession

from sparkdl_comm.job.pickling import pickle_module
from sparkdl_comm.job.session import is_classic
from sparkdl_comm.job.shipping import ShippedValue

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
    """Broadcasts of modules, one per module as long as it does not change.

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
