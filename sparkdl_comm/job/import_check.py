"""Check that an executor's Python can import this package, before anything else is unpickled there.

Spark ships a function by the name of its module. A Python that lacks this module would fail with a long traceback. So a
task's function is preceded by a small function that needs nothing but Python. It imports the module, or says which
executor's Python lacks what.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from sparkdl_comm.gang.failure import MARKER
from sparkdl_comm.job.shipping import ShippedValue


class ImportCheck:
    """Wrapper of ``function`` for ``mapInArrow``: imports its module on the executor before it unpickles the function.

    If the import fails, the task raises an ImportError that says what to install where. With ``is_rank``, which means that
    the task is a rank of a gang, it raises a Failure of the class ConfError instead. Without it, the function is sent as a
    :class:`ShippedValue`.
    """

    def __init__(self, function: Callable[[Any], Any], is_rank: bool) -> None:
        self._function, self._is_rank = function, is_rank

    def __call__(self, batches: Any) -> Any:
        return self._function(batches)

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled in this order: the check first.
        function = self._function if self._is_rank else ShippedValue.of(self._function)
        return _return_second, (_ModuleImport(self._function.__module__, self._is_rank), function)


class _ModuleImport:
    def __init__(self, module: str, is_rank: bool) -> None:
        self._module, self._is_rank = module, is_rank

    def __reduce__(self) -> tuple[Any, ...]:
        return _import_module, (self._module, MARKER if self._is_rank else "")


def _return_second(first: None, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return function


def _import_module(module: str, marker: str) -> None:
    """Import the module. This function is shipped as code, so it imports all that it uses itself.

    :raises ImportError: the import fails, and ``marker`` is empty.
    :raises RuntimeError: the import fails, and ``marker`` is set. ``Failure.find`` reads its text.
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
            f"{python} may map {limit / 2**20:.0f} MiB of address space, too little to load PyTorch: {error}. The limit is"
            " spark.executor.pyspark.memory. Unset it, and set spark.executor.memoryOverhead to what Python needs"
            if is_limited
            else f"{python} cannot import"
            f" what sparkdl_comm needs: {error}. Install sparkdl_comm and its requirements there. Or choose another Python by"
            " the environment variable PYSPARK_PYTHON, set before the session starts, or by spark-submit"
            " --conf spark.pyspark.python=... Or ship a packed environment by spark.archives"
        )
        if not marker:
            raise ImportError(message) from None
        failure = {"rank": 0, "step": None, "phase": "import", "error": "ConfError", "message": message}
        text = json.dumps({**failure, "traceback": "", "secondary": False, "log": ""})
        raise RuntimeError(marker + text) from None


cloudpickle.register_pickle_by_value(sys.modules[__name__])
