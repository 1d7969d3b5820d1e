"""Python side of the parameter server in Spark's BlockManager.

``parameter_server.py`` is the strategy. ``bucket_transfers.py`` makes forward wait for parameters, compresses gradients, and
waits for their sums. ``memory.py`` is the memory shared with the executor's JVM.
``sparkdl_comm/jvm`` sends requests to that JVM.

The JVM of rank 0 decides which layers travel together as a bucket (``ibatch`` in Scala). ``adaptive_buckets.py`` measures the
compute times, and asks for new buckets when they are due. The JVM measures the transfers.
"""
