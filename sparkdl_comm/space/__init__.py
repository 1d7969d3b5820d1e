"""Parameters as memory.

``parameter_space.py`` says where parameters lie in a flat vector, by names and shapes alone. ``flat.py`` binds a module
to two such vectors, of values and of gradients. In parts: ``buckets.py`` finds out when a part of the gradient is
complete, ``layer_buckets.py`` counts what is outstanding, ``wait_on_use.py`` has forward wait for parameters that are not
here yet. What is no parameter: ``module_state.py``, ``untrained_state.py``, ``replicas.py``,
``sync_batch_norm.py``.
"""
