"""Gradients that travel as their largest elements, or as narrow matrices.

``selection.py`` says what a selection of the k largest magnitudes promises, and has the operators by name: ``mstopk.py``, the
search for two thresholds of the MSTopK paper; ``exact.py``, which reads the vector as few times as possible; ``dgc.py``,
Deep Gradient Compression's double sampling.

``wire.py`` has what is selected as bytes; ``feedback.py`` keeps what is left out; ``sparsifier.py`` does both for one rank,
and adds up what all ranks' bytes say. ``compressed_sum.py`` is the interface of sums over the ranks: ``naive_all_gather.py``
gathers everything, ``hitopk.py`` is the hierarchical way, ``low_rank.py`` PowerSGD. Their stages run on a thread, in one order
on all ranks: ``stages.py``. ``schedule.py`` says how much travels in which step, ``trial.py`` whether that is faster,
``predict.py`` what it would take. Strategies use all this by ``strategies/compressed.py``, DDP's hooks by ``ddp_sums.py``.
"""
