"""Collectives as plans: who sends which elements to whom, over which rail, computed before anything is sent.

``plan.py`` says what a plan is, one file per algorithm makes them, ``algorithms.py`` lists the algorithms, ``transfers.py``
proves a plan (complete, no deadlock) and runs it on paper, ``cost.py`` predicts its time, ``select.py`` takes the cheapest.
``engine/`` runs plans; ``group.py`` is what a rank uses: its topology (``discover.py``), costs (``measure.py``) and engine.
"""
