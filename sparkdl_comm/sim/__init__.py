"""A cluster in virtual time: what takes hours on thirty hosts takes seconds here, and is the same for the same seed.

``engine.py`` runs events in their order, ``flows.py`` shares links out among transfers. ``conditions.py`` says how fast
hosts compute and what their links carry at every moment. ``task.py`` is what is learned, by real SGD on a small model;
``run.py`` is what all runs have in common. The systems: ``fabric_run.py`` has the transfers scheduled by the fabric's own
core, ``ring_run.py`` is synchronous, ``async_run.py`` a parameter server that applies whatever comes.
"""
