"""The scheduler of MLfabric, pure: it opens no socket and reads no clock. What happened goes in as events, at a time that the
caller says, and what is to be done comes out as decisions.

The boundary: ``roles.py`` says which node is on which host, ``events.py`` what the scheduler is told, ``decisions.py`` what it
says, ``synchrony.py`` how far workers may be apart; ``scheduler.py`` is the entry point.

Inside, one file per section of the paper: ``bandwidth.py`` is the network that is left, ``order.py`` orders updates (5.1),
``aggregate.py`` groups them (5.2), ``replicate.py`` holds the replica near the server (5.3) by the bound of ``divergence.py``,
``distribute.py`` brings models to workers (10.3). ``step_size.py`` is the delay-adaptive step size (3.1).
"""
