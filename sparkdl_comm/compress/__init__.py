"""Gradients that travel as their largest elements.

``selection.py`` says what a selection of the k largest magnitudes promises, and has the operators by name: ``mstopk.py``, the
search for two thresholds of the MSTopK paper; ``exact.py``, which reads the vector as few times as possible, on GPUs by
``triton_select.py``; ``dgc.py``, Deep Gradient Compression's double sampling.

``wire.py`` has what is selected as bytes; ``feedback.py`` keeps what is left out; ``sparsifier.py`` does both for one rank,
and adds up what all ranks' bytes say. ``sparse_sum.py`` is the interface of sums over the ranks, and the all-gather of
everything; ``hitopk.py`` the hierarchical way. Their stages run on a thread, in one order on all ranks: ``stages.py``.
``schedule.py`` says how much travels in which step. Strategies use all this by ``strategies/compressed.py``, DDP's hooks by
``ddp_sums.py``.
"""
