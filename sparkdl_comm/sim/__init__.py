"""Simulator of a cluster in virtual time. Hours on thirty hosts take seconds here, with equal results for equal seeds.

``engine.py`` runs events in order. ``links.py`` divides links among transfers. ``profile.py`` has networks' layers and
compute times.

- ``network.py`` models a topology's links and the order in which ranks send. ``script.py`` prepares a plan for
  ``plan_run.py``, which runs one rank for all equivalent ranks.
- ``collective.py`` computes the time of a collective.
- ``step_run.py`` computes the time of a training step with all-reduces during backward, and ``decoupled_run.py`` with
  reduce-scatter and all-gather separate. ``server_run.py`` computes iterations with the parameter server.
- ``forecast.py`` predicts a fit's time on another network, from a timeline (``traced_timings.py``).
"""
