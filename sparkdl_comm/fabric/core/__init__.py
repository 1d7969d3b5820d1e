"""MLfabric's scheduler as pure code: it opens no socket and reads no clock. The caller passes in events with their
times and carries out the decisions that come back.

The interface: ``nodes.py`` places nodes on hosts. ``events.py`` holds the scheduler's inputs, ``decisions.py`` its
outputs. ``rules.py`` holds a job's settings. ``scheduler.py`` is the entry point.

Inside, each section of the paper has one file that works on hosts and sizes alone. ``residual_network.py`` is the
residual network. ``order.py`` orders updates (5.1) and ``aggregate.py`` groups them (5.2). ``replicate.py`` keeps the
replica near the server (5.3), within the bound of ``divergence.py``. ``distribute.py`` sends models to workers
(10.3). ``batch.py`` runs ordering, grouping and replication in a row. ``step_size.py`` is the delay-adaptive step
size (3.1).

``ledger.py`` holds the scheduler's state, with the workers' updates (``update_ledger.py``) and the transfers under
way (``pending_transfers.py``). ``transfers.py`` turns plans into decisions. ``overtake.py`` moves slow updates behind
faster ones. ``losses.py`` handles lost nodes. ``catch_up.py`` sends the replica the updates that ``replicate.py`` has
punted.
"""
