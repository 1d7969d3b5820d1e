"""Compressed gradients: ranks send only the largest elements, or narrow matrices.

``selection.py`` selects the k largest magnitudes by operators with names; ``exact.py`` has the one that reads the vector
as few times as possible. ``wire.py`` encodes selected elements as bytes. ``feedback.py`` keeps the residual, the elements
that were not sent.

``sums.py`` gives the density of each step. It does the above for one rank, sums the bytes of all ranks, and defines the
interface of sums over the ranks with the one that gathers everything. ``hitopk.py`` works hierarchically, and predicts
the time of sparse sums. ``powersgd.py`` sends narrow matrices. ``stages.py`` runs the stages of sums on a thread, in the
same order on all ranks. Strategies use this package through ``strategies/compressed_exchange.py``, DDP through
``ddp_hooks.py``.
"""
