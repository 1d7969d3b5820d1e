"""The path of rows from Spark to tensors on a rank.

- Description of columns: ``fields.py``.
- Columns to arrays: ``arrow.py``, which also calls the user's ``decode``; ``vectors.py`` and ``ragged.py``.
- Checks: ``inspection.py`` counts the bad rows.
- Rows of a rank: ``batch_collector.py`` sorts them and ``cache.py`` serves them, in memory or on disk
  (``arrow_file.py``, ``local_disk.py``). ``named_cache.py`` keeps files for later fits.
- Batches: ``partitions.py`` decides which rows form a step.
- ``dataset.py`` is a torch dataset for users' own training functions.
"""
