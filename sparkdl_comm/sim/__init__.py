"""A cluster in virtual time: what takes hours on thirty hosts takes seconds here, and is the same for the same seed.

``engine.py`` runs events in their order, ``links.py`` shares links out among transfers, ``flows.py`` between hosts' NICs.

Collectives: ``network.py`` has the links of a topology and who sends over them next; ``script.py`` makes of a plan what
``plan_run.py`` runs, one rank for all that are alike; ``collective.py`` says how long a collective takes, ``group_run.py``
one of several stages, such as hierarchical top-k, ``step_run.py`` a step of training with all-reduces during backward, and
``decoupled_run.py`` one with the halves of all-reduces apart. ``server_run.py`` has iterations with the parameter server,
with layers in any batches.

Asynchronous training: ``conditions.py`` says how fast hosts compute and what their links carry at every moment. ``task.py``
is what is learned, by real SGD on a small model; ``run.py`` is what all runs have in common. The systems: ``fabric_run.py``
has the transfers scheduled by the fabric's own core, ``ring_run.py`` is synchronous, ``async_run.py`` a parameter server that
applies whatever comes. ``fabric_pace.py`` says how fast the fabric goes on where nothing changes.
"""
