"""Rows on their way to a rank.

``fields.py`` describes the columns it gets; ``arrow.py``, ``series.py``, ``vectors.py``, ``sparse.py`` and
``decoding.py`` make arrays of them; ``inspection.py`` counts the bad ones; ``cache.py`` keeps them, and ``received.py``
sorts them, in memory or in files of ``spill.py`` and ``arrow_file.py`` on the disk that ``local_disk.py`` shares out.
``held.py`` has some of these in memory too, and ``kept.py`` leaves them to later fits. ``partitions.py`` says which
make up which step. ``dataset.py``: the same rows for a training function of the user's own.
"""
