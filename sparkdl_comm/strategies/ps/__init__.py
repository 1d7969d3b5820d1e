"""The parameter server in Spark's BlockManager, seen from the Python worker.

``parameter_server.py`` is the strategy, ``pulls.py`` its first half: parameters come, and forward waits for them.
``memory.py`` is what a rank shares with its executor's JVM, in a ``segment.py``; ``session.py`` what it asks that JVM
for, over the ``bridge.py``. Which layers travel together, as a bucket: ``profiler.py`` measures, the
planner in the JVM plans, ``adaptive_buckets.py`` decides when, ``autotuner.py`` keeps a plan only if it is faster;
``planner.py`` asks the same planner without a session. ``files.py``: Hadoop's files through the executor.
"""
