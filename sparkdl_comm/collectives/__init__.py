"""Collectives as plans: all sends and receives of all ranks, computed before the first one begins.

``plan.py`` defines plans and ``algorithms/`` makes them. ``transfers.py`` checks a plan (complete, no deadlock) and
runs it in memory. ``cost.py`` predicts its time, and finds the cheapest algorithm. ``engine/`` runs plans. ``group.py``
is a rank's interface: it combines the topology and the measured costs (``discover.py``) and an engine, for all ranks or
some of them. ``communicator.py`` is the interface for users' training
functions. ``work.py`` is an operation in flight.
"""
