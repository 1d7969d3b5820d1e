"""Strategies: how the gradients of a step become the parameters of the next one.

The interface is in ``base.py``. ``registry.py`` has the names, and imports the class that the settings name.

Synchronous strategies, by what each rank updates:

- all parameters: ``all_reduce.py`` with torch.distributed, ``collective.py`` with the collectives of this package,
  ``hitopk.py`` with hierarchical top-k;
- all parameters, on rank 0 only, or its own part of the parameters: ``overlapped.py``;
- its own part of the parameters, with the parameter server: ``ps/``.

Asynchronous strategy: ``fabric.py``. Strategies that switch between others while a fit runs are in
:mod:`sparkdl_comm.autotune`.

Shared parts: ``exchange.py`` exchanges one bucket, ``compressed_exchange.py`` a compressed one, ``gradients.py`` clips and
unscales gradients, ``trace.py`` records what a rank did and when.
"""
