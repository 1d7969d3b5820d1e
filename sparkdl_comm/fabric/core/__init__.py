"""The scheduler of MLfabric, pure: it opens no socket and reads no clock. What happened goes in as events, at a time that the
caller says, and what is to be done comes out as decisions.

The boundary: ``roles.py`` says which node is on which host, ``events.py`` what the scheduler is told, ``decisions.py`` what it
says, ``synchrony.py`` and ``rules.py`` what a job demands; ``scheduler.py`` is the entry point.

Inside, one file per section of the paper, on hosts and sizes alone: ``bandwidth.py`` is the network that is left,
``order.py`` orders updates (5.1), ``aggregate.py`` groups them (5.2), ``replicate.py`` keeps the replica near the server
(5.3) by the bound of ``divergence.py``, ``distribute.py`` brings models to workers (10.3). ``batch.py`` does the first four
in a row; ``step_size.py`` is the delay-adaptive step size (3.1).

What the scheduler remembers is in ``ledger.py``: the updates that workers hold (``held.py``), the transfers under way
(``flight.py``). ``transfers.py`` makes decisions of plans, ``losses.py`` of the loss of a node; ``catch_up.py`` sends the
replica what ``replicate.py`` has punted.
"""
