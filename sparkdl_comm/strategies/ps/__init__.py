"""The parameter server in Spark's BlockManager, seen from the Python worker.

``parameter_server.py`` is the strategy, ``pulls.py`` its first half: parameters come, and forward waits for them.
``memory.py`` is what a rank shares with its executor's JVM, in a ``segment.py``; ``session.py`` what it asks that JVM
for, over the ``bridge.py``. Which layers travel together, as a bucket, is decided in the JVM of rank 0 (``ibatch`` in Scala):
``profiler.py`` measures what is computed, and the JVM what is transferred; ``adaptive_buckets.py`` asks when it is due, and
``planner.py`` asks its planner without a session. ``files.py``: Hadoop's files through the executor.
"""
