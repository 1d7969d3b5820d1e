"""Strategies: how the gradients of a step become the parameters of the next one.

The interface is in ``base.py``. ``registry.py`` has the names, and imports the class that the settings name.

Synchronous strategies, by what each rank updates:

- all parameters (``replicated.py``): ``all_reduce.py`` with torch.distributed, ``collective.py`` with this package's
  collectives, ``hitopk.py`` with hierarchical top-k;
- all parameters, on rank 0 only: ``rooted.py``;
- its own part of the parameters: ``decoupled.py`` with collectives, ``ps/`` with the parameter server.

Asynchronous strategies (``asynchronous.py``): ``fabric.py``.

Strategies that switch between others while a fit runs: ``chosen.py`` (``candidates.py``, ``choice.py``, ``step_watch.py``,
``succession.py``), and ``batched.py``, which switches between two ways to cut buckets (``bucket_planner.py``).

Shared parts: ``exchange.py`` exchanges one bucket, ``compressed.py`` a compressed one, ``arrivals.py`` makes forward wait
for parameters in flight, ``gradients.py`` clips and unscales gradients, ``trace.py`` records what a rank did and when.
"""
