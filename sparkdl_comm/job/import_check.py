"""The import check: the first thing that an executor's Python does is to see whether it has this package. Without the check, a
failing import would end in a long traceback.

Spark ships a function by the name of its module, which a Python without the module cannot load. So what is shipped begins
with a function that needs nothing but Python: it imports the module, and tells what is missing in which Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from sparkdl_comm.gang.failure import MARKER
from sparkdl_comm.job.shipped import Shipped


class ImportCheck:
    """Wraps ``function``, for ``mapInArrow``: where it arrives, its module is imported before it is unpickled.

    If the import fails, the task fails with an ImportError that says what to install where; on a ``rank`` of a gang with a
    Failure of the class ConfError. What is not a rank's is :class:`Shipped`.
    """

    def __init__(self, function: Callable[[Any], Any], rank: bool) -> None:
        self._function, self._rank = function, rank

    def __call__(self, batches: Any) -> Any:
        return self._function(batches)

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled in this order.
        function = self._function if self._rank else Shipped.of(self._function)
        return _second, (_Check(self._function.__module__, self._rank), function)


class _Check:
    def __init__(self, module: str, rank: bool) -> None:
        self._module, self._rank = module, rank

    def __reduce__(self) -> tuple[Any, ...]:
        return _check, (self._module, MARKER if self._rank else "")


def _second(first: None, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return function


def _check(module: str, marker: str) -> None:
    """Imports the module. Shipped as code, so all that it uses is imported here.

    :raises ImportError: it cannot be imported; with a marker, a RuntimeError that ``Failure.find`` reads.
    """
    import importlib
    import json
    import resource
    import socket
    import sys

    try:
        importlib.import_module(module)
    except (ImportError, OSError, MemoryError) as error:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        is_limited = limit != resource.RLIM_INFINITY and not isinstance(error, ModuleNotFoundError)
        if not is_limited and not isinstance(error, ImportError):
            raise
        python = (
            f"the Python of executors, {sys.executable} (Python {sys.version.split()[0]}) on {socket.gethostname()},"
        )
        message = (
            f"{python} may map {limit / 2**20:.0f} MiB of address space, which is too little to load PyTorch: {error}. This is"
            " what spark.executor.pyspark.memory limits. Unset it, and set spark.executor.memoryOverhead to what Python needs"
            if is_limited
            else f"{python} lacks"
            f" what sparkdl_comm needs: {error}. Install sparkdl_comm and its requirements there, or have executors use a"
            " Python that has them: the environment variable PYSPARK_PYTHON, set before the session starts, or spark-submit"
            " --conf spark.pyspark.python=...; spark.archives ships a packed environment"
        )
        if not marker:
            raise ImportError(message) from None
        failure = {"rank": 0, "step": None, "phase": "import", "error": "ConfError", "message": message}
        text = json.dumps({**failure, "traceback": "", "secondary": False, "log": ""})
        raise RuntimeError(marker + text) from None


cloudpickle.register_pickle_by_value(sys.modules[__name__])
