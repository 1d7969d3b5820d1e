"""Collectives as plans: who sends which elements to whom, over which rail, computed before anything is sent.

``plan.py`` says what a plan is, ``algorithms/`` makes them, ``transfers.py`` proves one (complete, no deadlock) and
runs it on paper, ``cost.py`` predicts its time, ``select.py`` takes the cheapest, ``explain.py`` prints that.
``engine/`` runs plans; ``group.py`` is what a rank uses: its topology (``discover.py``), costs (``measure.py``) and
engine. A group may be of a part of the ranks: ``rank_group.py`` says which, ``sub_topology.py`` on what topology they
are. ``communicator.py`` is the face for training functions of users' own, and gives ``handle.py``; ``torch_gang.py`` is a
gang for those that something else than CommDistributor started.
"""
