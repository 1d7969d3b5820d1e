"""Simulator of a cluster in virtual time. Hours on thirty hosts take seconds here, with equal results for equal seeds.

``engine.py`` runs events in order. ``links.py`` divides links among transfers, and ``flows.py`` among transfers between
hosts' NICs.

Collectives:

- ``network.py`` models a topology's links and the order in which ranks send. ``script.py`` prepares a plan for
  ``plan_run.py``, which runs one rank for all equivalent ranks.
- ``collective.py`` computes the time of a collective, and ``group_run.py`` of one with several stages, such as
  hierarchical top-k.
- ``step_run.py`` computes the time of a training step with all-reduces during backward, and ``decoupled_run.py`` with
  reduce-scatter and all-gather separate. ``server_run.py`` computes iterations with the parameter server.
- ``forecast.py`` predicts a fit's time on another network, from a timeline (``traced.py``, ``traced_overhead.py``).

Asynchronous training:

- ``conditions.py`` defines hosts' compute times and link rates over time. ``task.py`` is the learning task, real SGD on
  a small model. ``run.py`` is the base of all runs.
- ``fabric_run.py`` uses the fabric's own scheduler core, with ``paced.py`` for its transfers. ``ring_run.py`` is
  synchronous. ``async_run.py`` is a parameter server that applies updates as they arrive.
"""
