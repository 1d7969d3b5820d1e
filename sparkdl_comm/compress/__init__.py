"""Compressed gradients: ranks send only the largest elements, or narrow matrices.

``selection.py`` defines the selection of the k largest magnitudes and lists the operators by name. ``mstopk.py``
searches for two thresholds as in the MSTopK paper. ``exact.py`` reads the vector as few times as possible. ``dgc.py``
has the double sampling of Deep Gradient Compression.

``wire.py`` encodes selected elements as bytes. ``feedback.py`` keeps the residual, the elements that were not sent.
``sparsifier.py`` does both for one rank, and sums the bytes of all ranks. ``compressed_sum.py`` is the interface of
sums over the ranks, and has the one that gathers everything. ``hitopk.py`` works hierarchically, and ``low_rank.py``
is PowerSGD. ``stages.py`` runs their stages on a thread, in the same order on all ranks. ``schedule.py`` gives the
density of each step, ``trial.py`` finds out whether sparse steps are faster, and ``predict.py`` predicts their time.
Strategies use this package through ``strategies/compressed_exchange.py``, DDP through ``ddp_hooks.py``.
"""
