"""Spark's daemon of Python workers, with PyTorch in it: a worker is a fork of it, and need not load PyTorch again.

Opt in with ``spark.python.daemon.module=sparkdl_comm.daemon``. Several workers of an executor then start sooner, and share
PyTorch's pages, which YARN counts once for each of them. The package must be installed where executors run: what
``--py-files`` and ``addPyFile`` ship comes after the daemon.
"""

from __future__ import annotations

import gc
import os

from pyspark.daemon import manager


def _load() -> None:
    gc.disable()  # nothing of what is loaded is garbage: to look for some takes up to a fifth of the start
    import numpy

    import sparkdl_comm.ml.prediction  # noqa: F401 - for tasks that score
    from sparkdl_comm.job.rank import freeze_modules

    os.register_at_fork(after_in_child=numpy.random.seed)  # or all workers would draw the same numbers
    freeze_modules()  # and a garbage collection would write to the pages that workers share
    gc.enable()


if __name__ == "__main__":
    # Spark starts another daemon for tasks of RDDs, which need none of this. Only those of DataFrames have this variable.
    if "SPARK_SIMPLIFIED_TRACEBACK" in os.environ:
        _load()
    manager()
