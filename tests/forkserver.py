"""Processes that tests start: forks of one server, which has imported what they need.

A process of tests has one such server, so its modules are set here alone.
"""

import multiprocessing

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "pytest",
        "sparkdl_comm.job.rank",
        "sparkdl_comm.ml.estimator",
        "sparkdl_comm.fabric.api",
        "torch._dynamo",  # which each process would import with its first optimizer
        "tests.property.recipes.crew",
        "tests.unit.gang_helpers",
    ]
)
