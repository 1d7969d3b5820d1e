"""Collectives as plans: which rank sends which elements to which peer over which rail, computed before anything is
sent.

``plan.py`` defines plans and ``algorithms/`` makes them. ``transfers.py`` checks a plan (complete, no deadlock) and
runs it in memory. ``cost.py`` predicts its time, ``select.py`` finds the cheapest algorithm, and ``explain.py`` prints
that. ``engine/`` runs plans. ``group.py`` is the interface for ranks: it joins the topology (``discover.py``), the
costs (``measure.py``) and an engine. A group may cover some of the ranks: ``rank_group.py`` lists them, and
``sub_topology.py`` gives their topology. ``communicator.py`` is the interface for users' training functions and returns
the handles of ``handle.py``. ``torch_gang.py`` makes a gang for functions that CommDistributor did not start.
"""
