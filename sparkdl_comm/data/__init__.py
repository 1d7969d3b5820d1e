"""Rows on their way to a rank.

``fields.py`` describes the columns it gets; ``arrow.py``, ``series.py``, ``vectors.py`` and ``decoding.py`` make
arrays of them; ``inspection.py`` counts the bad ones; ``cache.py`` keeps them; ``partitions.py`` says which make up
which step. ``dataset.py``: the same rows for a training function of the user's own.
"""
