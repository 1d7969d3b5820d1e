"""The path of rows from Spark to tensors on a rank.

- Description of columns: ``fields.py``.
- Arrow, pandas and Vectors to arrays: ``arrow.py``, ``series.py``, ``vectors.py``, ``sparse.py``, ``ragged.py``;
  ``decoding.py`` calls the user's ``decode``.
- Checks: ``inspection.py`` counts the bad rows.
- Rows of a rank: ``batch_collector.py`` sorts them and ``cache.py`` serves them, in memory or on disk (``spill.py``,
  ``arrow_file.py``, ``local_disk.py``).
  ``named_cache.py`` keeps files for later fits. ``cache_command.py`` lists and removes them.
- Batches: ``partitions.py`` decides which rows form a step. ``arguments.py`` passes several arguments to the model.
- ``dataset.py`` is a torch dataset for users' own training functions.
"""
