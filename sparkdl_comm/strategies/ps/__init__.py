"""The parameter server in Spark's BlockManager, seen from the Python worker.

``parameter_server.py`` is the strategy; ``memory.py`` what it shares with its executor's JVM, in a ``segment.py``;
``bridge.py`` the connection to that JVM. Which layers travel together: ``profile.py`` measures, the planner in the
JVM plans, ``batching.py`` decides when, ``trial.py`` keeps a plan only if it is faster; ``plan.py`` asks the same
planner without a session. ``files.py``: Hadoop's files through the executor.
"""
