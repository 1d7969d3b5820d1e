"""Gradients that travel as their largest elements.

``selection.py`` says what a selection of the k largest magnitudes promises, and has the operators by name: ``mstopk.py``, the
search for two thresholds of the MSTopK paper; ``exact.py``, which reads the vector as few times as possible, on GPUs by
``triton_select.py``; ``dgc.py``, Deep Gradient Compression's double sampling.
"""
