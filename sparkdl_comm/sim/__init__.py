"""Simulator of a cluster in virtual time. Hours on thirty hosts take seconds here, with equal results for equal seeds.

``engine.py`` runs events in order, and divides links among transfers. ``profile.py`` has networks' layers and compute times.

- ``network.py`` models a topology's links and the order in which ranks send.
- ``plan_run.py`` computes the time of a collective. It runs one rank for all equivalent ranks.
- ``step_run.py`` computes the time of a training step with collectives, ``server_run.py`` with the parameter server.
- ``forecast.py`` predicts a fit's time on another network, from a timeline (``traced_timings.py``).
"""
