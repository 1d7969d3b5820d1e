"""Spark's daemon of Python workers, with PyTorch in it: a worker is a fork of it, and need not load PyTorch again.

Opt in with ``spark.python.daemon.module=sparkdl_comm.daemon``. Workers then start seconds sooner, and share PyTorch's memory.
The package must be installed where executors run: what ``--py-files`` and ``addPyFile`` ship comes after the daemon.
"""

from __future__ import annotations

import gc
import importlib
import os

from pyspark.daemon import manager

#: The first optimizer of a process imports torch._dynamo, which takes as long as torch itself.
_MODULES = ("torch._dynamo", "sparkdl_comm.job.rank", "sparkdl_comm.ml.prediction")

if __name__ == "__main__":
    # Spark starts another daemon for tasks of RDDs, which need none of this. Only those of DataFrames have this variable.
    if "SPARK_SIMPLIFIED_TRACEBACK" in os.environ:
        for name in _MODULES:
            importlib.import_module(name)
        import numpy

        os.register_at_fork(after_in_child=numpy.random.seed)  # or all workers would draw the same numbers
        gc.freeze()  # a garbage collection would write to the pages that workers share
    manager()
