"""Spark's daemon of Python workers with PyTorch preloaded. Each worker is a fork of it, and need not load PyTorch
again.

Opt in with ``spark.python.daemon.module=sparkdl_comm.daemon``. Several workers of an executor then start sooner, and
share PyTorch's pages. YARN counts these pages once per worker. The package must be installed on executors: files that
``--py-files`` and ``addPyFile`` ship arrive after the daemon has started.
"""

from __future__ import annotations

import gc
import os

from pyspark.daemon import manager


def _load() -> None:
    gc.disable()  # loading makes no garbage, and collections take up to a fifth of the start
    import numpy

    import sparkdl_comm.ml.prediction  # noqa: F401 - for tasks that score
    from sparkdl_comm.job.rank import freeze_modules

    os.register_at_fork(after_in_child=numpy.random.seed)  # otherwise all workers draw the same numbers
    freeze_modules()  # otherwise garbage collections write to the pages that workers share
    gc.enable()


if __name__ == "__main__":
    # Spark starts a separate daemon for tasks of RDDs, which do not need PyTorch. Only the daemon for DataFrames has
    # this variable.
    if "SPARK_SIMPLIFIED_TRACEBACK" in os.environ:
        _load()
    manager()  # type: ignore[no-untyped-call]
