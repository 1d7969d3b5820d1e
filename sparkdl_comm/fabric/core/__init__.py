"""MLfabric's scheduler as pure code: it opens no socket and reads no clock. The caller passes in events with their
times and carries out the decisions that come back. Sections are those of Raajay Viswanathan and Aditya Akella,
"Network-accelerated Distributed Machine Learning Using MLfabric", VLDB 2020.

``messages.py`` holds the scheduler's inputs and outputs, ``scheduler.py`` is its entry point. ``../params.py`` has a
job's settings.

Inside, each section of the paper has one file that works on hosts and sizes alone. ``network.py`` is the residual
network. ``order.py`` orders updates (5.1). ``aggregate.py`` groups them (5.2) and sends models to workers by the same
algorithm (10.3). ``replication.py`` keeps the replica near the server (5.3), within the bound of ``updates.py``.
``batch.py`` runs them in a row, and makes decisions of their plans.

``state.py`` holds the scheduler's state: where each update is (``updates.py``) and the transfers under way
(``network.py``). ``losses.py`` handles lost nodes.
"""
